"""Define the networks of the embedded pair."""

from edgespec_models.distill.network import Shape

SEED = Shape(width=256, layers=6, heads=4, kv_heads=2, head_dim=64, ffn=704)  # grows into TARGET
TARGET = Shape(width=256, layers=10, heads=4, kv_heads=2, head_dim=64, ffn=704)
DRAFT = Shape(width=160, layers=2, heads=2, kv_heads=1, head_dim=64, ffn=448)
