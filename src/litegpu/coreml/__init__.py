"""The Core ML delegate: parts of a model as ML programs, for the Neural Engine, GPU and CPU of Apple's computers."""
