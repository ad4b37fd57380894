"""Control flow, and what lives beside the tensors: variables and hash tables."""

from __future__ import annotations

from litegpu.model.ops.record import Op

# fmt: off
OPS = (
    Op("ASSIGN_VARIABLE", "v:resource x:any ->", moves="elements"),
    Op("CALL", "x*:object -> .*:object", calls="all", moves="elements"),
    Op("CALL_ONCE", "->", moves="elements"),
    Op("HASHTABLE", "-> .:resource", moves="elements"),
    Op("HASHTABLE_FIND", "t:resource keys:any default:any -> .:any", moves="elements"),
    Op("HASHTABLE_IMPORT", "t:resource keys:any values:any ->", moves="elements"),
    Op("HASHTABLE_SIZE", "t:resource -> .", moves="elements"),
    Op("IF", "p:bool x*:object -> .*:object", calls="branch", moves="elements"),
    Op("READ_VARIABLE", "v:resource -> .:any", moves="elements"),
    Op("VAR_HANDLE", "-> .:resource", moves="elements"),
    Op("WHILE", "x+:object -> .*:object", calls="loop", moves="elements"),
)
# fmt: on
