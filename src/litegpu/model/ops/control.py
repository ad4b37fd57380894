"""Control flow, and what lives beside the tensors: variables and hash tables."""

from __future__ import annotations

from litegpu.model.ops.record import Op

# fmt: off
OPS = (
    Op("ASSIGN_VARIABLE", "v:resource x:any ->"),
    Op("CALL", "x*:object -> .*:object", calls="all"),
    Op("CALL_ONCE", "->"),
    Op("HASHTABLE", "-> .:resource"),
    Op("HASHTABLE_FIND", "t:resource keys:any default:any -> .:any"),
    Op("HASHTABLE_IMPORT", "t:resource keys:any values:any ->"),
    Op("HASHTABLE_SIZE", "t:resource -> ."),
    Op("IF", "p:bool x*:object -> .*:object", calls="branch"),
    Op("READ_VARIABLE", "v:resource -> .:any"),
    Op("VAR_HANDLE", "-> .:resource"),
    Op("WHILE", "x+:object -> .*:object", calls="loop"),
)
# fmt: on
