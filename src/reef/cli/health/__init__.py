"""What is in a bucket, whether it is whole, and what can go.

_stats, _inspect          figures; the content of single objects
_verify, _repair, _gc     find damage, repair it, delete what nothing needs
_check_store              whether a store can back a log
"""
