"""Accuracy of a model on a data set: what the official evaluation tools measure, on any delegate.

An evaluation is a row of small parts, and `shard.map_shard` is its middle:

    items -> decoded by worker processes -> model, a batch at a time -> a record for each item -> metrics

`image_list` lists the inputs, `decoding` prepares them, `records` keeps what came out, so that an interrupted one can
go on. `evaluation` is the loop over all that; the modules named after a data set say what differs, their presentations
what is shown of it.
"""
