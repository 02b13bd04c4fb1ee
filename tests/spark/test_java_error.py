"""What Spark says when it fails, in one line."""

from __future__ import annotations

from py4j.protocol import Py4JError

from reef.spark._java_error import reason_of


def test_an_error_of_the_jvm_is_one_line() -> None:
    java = (
        "An error occurred while calling o1.collectToPython.\n"
        ": org.apache.spark.SparkException: [FAILED_READ_FILE.NO_HINT] Encountered error while "
        "reading file file:///a.csv.  SQLSTATE: KD001\n\tat a.b.C\n"
        "Caused by: java.lang.A: [B] first\n\tat a.b.C\n\t... 5 more\n"
        "Caused by: java.lang.B: two\n lines\n\tat a.b.C\n\t... 5 more\n"
    )
    assert reason_of(Py4JError(java)) == "file:///a.csv: java.lang.B: two lines"
    assert reason_of(Py4JError(java.split("Caused")[0])).startswith("[FAILED_READ_FILE.NO_HINT]")
    python = f'{java}Traceback (most recent call last):\n  File "x"\nValueError: no\n\n\tat a.b.C\n'
    assert reason_of(Py4JError(python)) == "file:///a.csv: ValueError: no"
    assert reason_of(ConnectionError()) == "ConnectionError"
