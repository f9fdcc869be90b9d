"""Check a folder of submissions for the course and print a table: `python grade.py SUBMISSIONS`.

A student's files lie anywhere below a folder of the student's own, with the names of the exercises:
`SUBMISSIONS/ada/03-shared-tiles.cu`. Each is checked by the command in the head of the exercise
beside this script, not by the one in the student's file, so that limits stay as they are.
"""

from __future__ import annotations

import argparse
import csv
import re
import shlex
import subprocess
import sys
import unicodedata
from pathlib import Path

EXERCISES = Path(__file__).resolve().parent
# What `gemmkit check` exits with.
OUTCOMES = {0: "done", 1: "not yet", 2: "not usable"}
# Seconds for one file; an endless loop ends before, after the emulator's limit of steps.
LONGEST = 300
# A line of progress, such as "[3/20] gemm 128x128x80": nothing to hand back.
PROGRESS = re.compile(r"^\[\d+/\d+\] .*\n", re.M)


def command(exercise: Path) -> list[str]:
    """The options of the check in the head comment of an exercise, without the file."""
    lines = exercise.read_text("utf-8").splitlines()
    text = " ".join(line[5:].rstrip("\\") for line in lines if line.startswith("//   "))
    program, verb, file, *options = shlex.split(text)
    if (program, verb, file) != ("gemmkit", "check", exercise.name):
        raise SystemExit(f"{exercise}: its head has no command for it")
    return options


def grade(file: Path, options: list[str]) -> tuple[str, str]:
    """The outcome of one submission, and what `gemmkit check` printed, without its progress."""
    words = [sys.executable, "-m", "gemmkit", "check", str(file), *options]
    try:
        run = subprocess.run(
            words, capture_output=True, text=True, encoding="utf-8", timeout=LONGEST
        )
    except subprocess.TimeoutExpired:
        return "too slow", f"stopped after {LONGEST} seconds"
    return OUTCOMES.get(run.returncode, "not usable"), run.stdout + PROGRESS.sub("", run.stderr)


def width(text: str) -> int:
    """Columns of a terminal that a text takes: two for a Chinese character, none for an accent."""
    return sum(
        0 if unicodedata.combining(each) else 1 + (unicodedata.east_asian_width(each) in "WF")
        for each in text
    )


def main() -> None:
    """Read the arguments, check every submission, print the table."""
    parser = argparse.ArgumentParser(description="Grade a folder of submissions for the course.")
    parser.add_argument("submissions", type=Path, help="a folder with a folder for each student")
    parser.add_argument("--csv", type=Path, metavar="FILE", help="also write the table as CSV")
    parser.add_argument("--reports", type=Path, metavar="FOLDER", help="keep what the checks print")
    given = parser.parse_args()
    if not given.submissions.is_dir():
        raise SystemExit(f"{given.submissions} is not a folder")
    students = sorted(each for each in given.submissions.iterdir() if each.is_dir())
    if not students:
        raise SystemExit(f"{given.submissions} has no folders: one for each student is needed")

    exercises = sorted(EXERCISES.glob("[0-9]*.cu"))
    table = [["student", *(each.stem.partition("-")[0] for each in exercises), "done"]]
    for student in students:
        row = [student.name]
        for exercise in exercises:
            found = sorted(student.rglob(exercise.name))
            outcome, report = ("-", "") if not found else grade(found[0], command(exercise))
            row.append(outcome)
            if given.reports is not None and found:
                kept = given.reports / student.name / f"{exercise.stem}.txt"
                kept.parent.mkdir(parents=True, exist_ok=True)
                kept.write_text(report, "utf-8")
        table.append([*row, str(row.count("done"))])

    widths = [max(map(width, column)) for column in zip(*table, strict=True)]
    for row in table:
        cells = (
            cell + " " * (widest - width(cell)) for cell, widest in zip(row, widths, strict=True)
        )
        print("  ".join(cells).rstrip())
    if given.csv is not None:
        with given.csv.open("w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows(table)


if __name__ == "__main__":
    main()
