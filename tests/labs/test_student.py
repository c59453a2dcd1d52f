"""The student that types the commands of labs: what it types happens, and a wrong box is noticed."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace import eventually
from tests.labs.student import Student, same_shape


def test_a_student_types_in_one_shell_and_leaves_no_job_behind(tmp_path: Path) -> None:
    alive = tmp_path / "alive"
    with Student(tmp_path / "student", tmp_path / "home") as student:
        assert student.types(f"(while sleep 0.05; do date > {alive}; done) & job=$!").code == 0
        assert student.types("kill -0 $job").code == 0
        assert student.types("printf 'foo\\nbar\\n' > a.txt; wc -l < a.txt").out.strip() == "2"
        assert student.types("python - x <<'END'\nimport sys\nprint(sys.argv[1])\nEND").out == "x\n"
        wrong = student.types("headrace lab list nothing")
        assert (wrong.code, "there is no lab 'nothing'" in wrong.err) == (2, True)
        eventually(alive.exists, 20)
    alive.unlink()
    with pytest.raises(AssertionError, match="not true within"):
        eventually(alive.exists, 0.5)


@pytest.mark.parametrize(
    ("box", "printed", "same"),
    [
        ("1,000 records in 0.2 s", "1 record in 15 ms", True),
        ("  t/0: 3 records\n  t/2: 4 records", "  t/1: 7 records", True),
        ("id 7dvTzq3cQ4m2yFf0cWb1Aw", "id Xq-z_q3cQ4m2yFf0cWb1Ag", True),
        ("a\nb\n… 12 more lines", "a\nb\nc\nd", True),
        ("a\nb\n… 12 more lines", "a\nc", False),
        ("3 records acknowledged, 0 failed", "3 records acknowledged", False),
        ("one\ntwo", "one", False),
        ('{"key": null, "value": {"a": ""}}', '{"key": 7, "value": {"a": "x"}}', True),
        ('{"key": null, "value": {"a": ""}}', '{"key": 7, "value": {"b": "x"}}', False),
    ],
)
def test_a_box_that_is_not_what_is_printed_is_noticed(box: str, printed: str, same: bool) -> None:
    assert same_shape(box, printed) == same
