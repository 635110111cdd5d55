"""Laws: properties that every part of a model is tested for, one file for each law.

Every file in this folder is a law; no other list names it. The file defines three names. SAYS is the property as a
sentence for a newcomer. OVER is the kind of parts that the law tests: "layer", "model", or the name of a base class in
lower case, such as "pattern". `judge(subject)` tests a part and yields findings. A finding is a sentence that says how
the part breaks the law, with the smallest example that fails. PROBE = True marks a learnability probe, whose findings
`kinformer check` reports as notes and not as failures.
"""
