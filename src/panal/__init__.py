"""panal: an organisation's own GPUs as one private inference service."""

__version__ = "0.1.0"
