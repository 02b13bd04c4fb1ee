"""The fold: log objects become level-0 segments."""
