"""Small image folders for tests and measurements: coloured shapes, one class a shape."""
import os

import numpy as np
from PIL import Image

SHAPES = ["disc", "square", "cross", "ring"]


def picture(shape, size, rng):
    y, x = np.mgrid[0:size, 0:size].astype(np.float32)
    cx, cy = rng.uniform(0.35, 0.65, 2) * size
    r = rng.uniform(0.2, 0.32) * size
    d = np.hypot(x - cx, y - cy)
    inside = {"disc": d < r,
              "square": np.maximum(abs(x - cx), abs(y - cy)) < r * 0.85,
              "cross": (np.minimum(abs(x - cx), abs(y - cy)) < r * 0.3) & (d < r * 1.2),
              "ring": abs(d - r) < r * 0.3}[shape]
    image = np.full((size, size, 3), rng.integers(200, 256, 3), np.uint8)
    image[inside] = rng.integers(0, 160, 3)
    return image


def make(folder, classes=2, images=64, size=16, seed=0, fmt="png"):
    """folder/CLASS/NNNN.png, `images` in all; returns the folder."""
    rng = np.random.default_rng(seed)
    for i in range(images):
        name = SHAPES[i % classes % len(SHAPES)] + ("" if i % classes < len(SHAPES) else str(i % classes))
        where = os.path.join(folder, name)
        os.makedirs(where, exist_ok=True)
        Image.fromarray(picture(SHAPES[i % classes % len(SHAPES)], size, rng)).save(
            os.path.join(where, f"{i:05d}.{fmt}"))
    return folder
