"""The arena: members trained on the same tasks by one loop, with tuned rates and several seeds.

`kinformer arena` runs it. Begin with `arena_task.py` (the tasks and their budgets) and `entrant.py` (which members take
part, and with which sizes). `schedule.py` decides the next training run from the results so far, `run_arena.py` trains
it, `arena_results.py` reads and writes the result files, and `ranking.py` compares members.
"""
