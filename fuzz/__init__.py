"""Coverage-guided fuzzing of every decoder with atheris: `make fuzz`, or `python -m fuzz`."""
