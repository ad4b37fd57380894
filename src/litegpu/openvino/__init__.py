"""The OpenVINO delegate: parts of a model on Intel's CPUs, GPUs and NPUs, or on any device that OpenVINO has."""
