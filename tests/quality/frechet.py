"""Fréchet distance in the features of a small classifier trained on the real images.

The classifier is a fixed convolutional net with a fixed seed, trained by this file to
tell the classes of the set apart; features are its 64 penultimate activations.  Needs
PyTorch, NumPy and Pillow."""
import io
import os
import tarfile

import numpy as np
import torch
from PIL import Image

SEED = 5


def read(data, side):
    """All images (n, side, side, 3) u8 and all labels of a folder of class folders, or of tars."""
    images, labels = [], []

    def add(raw, label):
        im = Image.open(io.BytesIO(raw)).convert("RGB")
        scale = side / min(im.size)
        im = im.resize((max(side, round(im.width * scale)), max(side, round(im.height * scale))), Image.LANCZOS)
        x, y = (im.width - side) // 2, (im.height - side) // 2
        images.append(np.asarray(im.crop((x, y, x + side, y + side))))
        labels.append(label)

    if data.endswith("*.tar"):
        folder = os.path.dirname(data)
        for name in sorted(os.listdir(folder)):
            if name.startswith("train-") and name.endswith(".tar"):
                read_tar(os.path.join(folder, name), add)
    else:
        for label, name in enumerate(sorted(d for d in os.listdir(data) if os.path.isdir(os.path.join(data, d)))):
            for file in sorted(os.listdir(os.path.join(data, name))):
                if not file.lower().endswith((".png", ".jpg", ".jpeg", ".webp")):
                    continue
                with open(os.path.join(data, name, file), "rb") as f:
                    add(f.read(), label)
    return np.stack(images), np.array(labels)


def read_tar(path, add):
    raw = {}
    with tarfile.open(path) as tar:
        for m in tar:
            key, ext = os.path.splitext(m.name)
            raw.setdefault(key, {})[ext] = tar.extractfile(m).read()
    for parts in raw.values():
        add(parts[".jpg"], int(parts[".cls"]))


class Net(torch.nn.Module):
    def __init__(self, classes):
        super().__init__()
        def block(a, b):
            return torch.nn.Sequential(torch.nn.Conv2d(a, b, 3, padding=1), torch.nn.GroupNorm(8, b), torch.nn.ReLU(),
                                       torch.nn.MaxPool2d(2))
        self.body = torch.nn.Sequential(block(3, 32), block(32, 64), block(64, 64), torch.nn.AdaptiveAvgPool2d(1),
                                        torch.nn.Flatten())
        self.head = torch.nn.Linear(64, classes)

    def forward(self, x):
        return self.head(self.body(x))


def tensor(images):
    return torch.from_numpy(images).permute(0, 3, 1, 2).float() / 127.5 - 1


class Real:
    """The real images: features, their mean and covariance."""

    def __init__(self, data, side, cache):
        torch.manual_seed(SEED)
        images, labels = read(data, side)
        self.net = Net(int(labels.max()) + 1)
        if os.path.exists(cache):
            self.net.load_state_dict(torch.load(cache))
        else:
            self.train(images, labels)
            torch.save(self.net.state_dict(), cache)
        rng = np.random.default_rng(SEED)
        self.mean, self.cov = self.moments(images[rng.permutation(len(images))[:10000]])

    def train(self, images, labels, steps=600, batch=128):
        opt = torch.optim.AdamW(self.net.parameters(), lr=2e-3)
        rng = np.random.default_rng(SEED)
        for step in range(steps):
            pick = rng.integers(0, len(images), batch)
            loss = torch.nn.functional.cross_entropy(self.net(tensor(images[pick])), torch.from_numpy(labels[pick]))
            opt.zero_grad()
            loss.backward()
            for g in opt.param_groups:
                g["lr"] = 2e-3 * (1 - step / steps)
            opt.step()

    def features(self, images):
        with torch.no_grad():
            return torch.cat([self.net.body(tensor(images[i:i + 256])) for i in range(0, len(images), 256)]).double().numpy()

    def moments(self, images):
        f = self.features(images)
        return f.mean(0), np.cov(f, rowvar=False)

    def distance(self, grid, columns, side, gap=1):
        """The distance between the real images and the tiles of a grid of samples."""
        mean, cov = self.moments(tiles(grid, columns, side, gap))
        return frechet(self.mean, self.cov, mean, cov)


def tiles(path, columns, side, gap=1):
    im = np.asarray(Image.open(path).convert("RGB"))
    pitch = side + gap
    first = (im.shape[1] - (columns * pitch - gap)) // 2
    rows = (im.shape[0] - 2 * first + gap) // pitch
    return np.stack([im[first + r * pitch:first + r * pitch + side, first + c * pitch:first + c * pitch + side]
                     for r in range(rows) for c in range(columns)])


def frechet(m1, c1, m2, c2):
    """|m1 - m2|² + tr(c1 + c2 - 2 (c1 c2)^(1/2)), by eigenvalues of the symmetric product."""
    w, v = np.linalg.eigh(c1)
    root = (v * np.sqrt(np.maximum(w, 0))) @ v.T
    middle = np.linalg.eigvalsh(root @ c2 @ root)
    return float(((m1 - m2)**2).sum() + np.trace(c1) + np.trace(c2) - 2 * np.sqrt(np.maximum(middle, 0)).sum())
