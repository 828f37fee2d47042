"""A line through observations that come one by one."""

import pytest

from services.scheduler.line_fit import Line


def test_a_line_follows_what_it_sees_and_never_falls_with_rows() -> None:
    line = Line()
    for rows in (1, 4, 8, 16) * 20:
        line.observe(rows, 10 + 0.5 * rows)
    assert line.at(2) == pytest.approx(11)
    assert line.at(32) == pytest.approx(26)
    same = Line()
    same.observe(4, 20)
    assert same.at(100) == 20
    falling = Line()
    for rows in (1, 8):
        falling.observe(rows, 20 - rows)
    assert falling.at(16) == falling.at(1)
    assert Line().at(5) == 0
