"""The distances from a teacher, against loops over their equations in float64."""

import math

import torch

from kinformer.nn.losses.distillation import hidden_distance, logit_distance


def test_logits_against_a_loop() -> None:
    torch.manual_seed(0)
    student, teacher = (3 * torch.randn(2, 3, 5, dtype=torch.float64) for _ in range(2))
    for temperature in (1.0, 2.5):
        distances = logit_distance(student, teacher, temperature)
        for n in range(2):
            for t in range(3):
                p, q = ([math.exp(float(x) / temperature) for x in logits[n, t]] for logits in (teacher, student))
                divergence = sum(
                    a / sum(p) * (math.log(a / sum(p)) - math.log(b / sum(q))) for a, b in zip(p, q, strict=True)
                )
                assert math.isclose(float(distances[n, t]), temperature**2 * divergence, rel_tol=1e-10)
    assert float(logit_distance(student, student).abs().max()) < 1e-12


def test_hidden_states_against_a_loop() -> None:
    torch.manual_seed(0)
    states, taught = ([torch.randn(2, 3, 4, dtype=torch.float64) for _ in range(2)] for _ in range(2))
    distances = hidden_distance(states, taught)
    for n in range(2):
        for t in range(3):
            expected = 0.0
            for h, target in zip(states, taught, strict=True):
                squares = [(float(h[n, t, d]) - float(target[n, t, d])) ** 2 for d in range(4)]
                expected += sum(squares) / sum(float(target[n, t, d]) ** 2 for d in range(4)) / 2
            assert math.isclose(float(distances[n, t]), expected, rel_tol=1e-10)
    zeros = [torch.zeros_like(state) for state in taught]
    torch.testing.assert_close(hidden_distance(zeros, taught), torch.ones(2, 3, dtype=torch.float64))


def test_no_gradient_reaches_the_teacher() -> None:
    student, teacher = (torch.randn(1, 2, 4, requires_grad=True) for _ in range(2))
    (logit_distance(student, teacher).sum() + hidden_distance([student], [teacher]).sum()).backward()
    assert teacher.grad is None and student.grad is not None and bool(student.grad.any())
