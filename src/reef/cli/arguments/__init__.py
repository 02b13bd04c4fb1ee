"""What commands take: how functions become commands, and the arguments that several share.

_parameters      functions as commands; `group`, `derived`, `--json`
_struct_options  the fields of an Options struct as options
_bucket          the bucket, a namespace, or all; opening them
_version         which version is read; keys that make a write safe to repeat
"""
