"""How many keys and rows a read treats one by one, beside the measurement that says so.

Three ways lead to the newest versions of n keys, and to their rows: point reads whose rows are given
one by one, point reads whose rows are gathered into columns, and a join of all keys with the blocks
that may hold them. Measured in microseconds (on memory, two runs) for `get_many` of n keys and values
(kv), of n documents with a vector (docs), and of one attribute of n documents (attr):

            rows one by one         points as columns       joined with blocks
      n     kv    docs   attr       kv    docs   attr       kv    docs   attr
     16    109     492     61      219     664    171     1091     969    826
     64    181    1101    209      338    1076    249     1635    1204   1023
    256    723    5702    815      750    2956    585     2226    1690   1323
    512   1560   15319   1668     1371    4651   1078     2332    2205   1678
   1024   9128   29314   3368     2442   25383   2056     2759    3026   2361

Up to 64 rows, one by one is as fast as columns or faster. Of documents with vectors, the join wins from
256 keys on; of narrow rows, point reads are still ahead at 1,024. One limit holds for both: beyond
256, point reads lose more on wide rows (2.4 ms at 512) than they gain on narrow ones (1 ms).

`reef.segment` has one more threshold, for the keys of a single segment.
"""

from __future__ import annotations

POINTS_MAX = 256
"""Up to this many keys are looked up one by one; more are joined with the blocks that may hold them."""
FEW_ROWS_MAX = 64
"""Up to this many rows are given one by one; more are gathered into columns."""
WARM_SEGMENTS_MAX = 64
"""The first point read of a view fetches the tails of up to this many segments side by side."""
