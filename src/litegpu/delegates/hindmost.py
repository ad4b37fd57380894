"""What a delegate of ours says that is asked after all others, for nodes that would be the CPU's."""

from __future__ import annotations

import sys

from litegpu.delegates.report import CPU


class Hindmost:
    """Stands behind all delegates, under the CPU's own name, and takes what it checks, however little that is, and
    where shapes are not known. The properties of protocol.Delegate; `check` and `prepare` are its heirs'."""

    name = CPU
    takes_unknown = True
    max_delegated_partitions = 0
    min_nodes_per_partition = 0
    first_delegate_node_index = 0
    last_delegate_node_index = sys.maxsize
