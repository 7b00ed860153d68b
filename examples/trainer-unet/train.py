"""A small UNet2DModel of Hugging Face's diffusers on a swarm: it is trained as a DDPM and draws by DDIM."""
import io

import numpy as np
import torch
from diffusers import DDIMScheduler, UNet2DModel
from PIL import Image

import skerry

SIDE = 16
torch.manual_seed(0)
model = UNet2DModel(sample_size=SIDE, in_channels=3, out_channels=3, block_out_channels=(16, 32), layers_per_block=1,
                    norm_num_groups=8, down_block_types=("DownBlock2D", "AttnDownBlock2D"),
                    up_block_types=("AttnUpBlock2D", "UpBlock2D"))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
schedule = DDIMScheduler(num_train_timesteps=1000)


def collate(samples):
    """Pictures as a tensor of values from -1 to 1."""
    pictures = [Image.open(io.BytesIO(s.data)).convert("RGB").resize((SIDE, SIDE)) for s in samples]
    return torch.stack([torch.from_numpy(np.asarray(p, np.float32) / 127.5 - 1).permute(2, 0, 1) for p in pictures])


def loss_of(pictures, rng):
    noise = torch.randn(pictures.shape, generator=rng)
    t = torch.randint(1000, (len(pictures),), generator=rng)
    return (model(schedule.add_noise(pictures, noise, t), t).sample - noise).square().mean()


with skerry.join(model, optimizer=optimizer) as island:
    @island.evaluate
    def evaluate(evaluation):
        rng = torch.Generator().manual_seed(0)
        for pictures in evaluation.batches(collate):
            with torch.no_grad():
                evaluation.add(loss_of(pictures, rng) * len(pictures), units=len(pictures), samples=len(pictures))

    @island.sample
    def sample(drawing):
        rng = torch.Generator().manual_seed(drawing.seed % 2**63)
        x = torch.randn(len(drawing.labels), 3, SIDE, SIDE, generator=rng)
        schedule.set_timesteps(20)
        for t in schedule.timesteps:
            with torch.no_grad():
                x = schedule.step(model(x, t).sample, t, x).prev_sample
        grid = Image.new("RGB", (SIDE * drawing.columns, SIDE * -(-len(x) // drawing.columns)))
        for i, picture in enumerate((x.clamp(-1, 1) * 127.5 + 127.5).byte().permute(0, 2, 3, 1).numpy()):
            grid.paste(Image.fromarray(picture), (SIDE * (i % drawing.columns), SIDE * (i // drawing.columns)))
        return grid

    for phase in island.phases():
        rng = torch.Generator().manual_seed(phase.seed % 2**63)
        for pictures in phase.batches(collate):
            optimizer.zero_grad()
            loss = loss_of(pictures, rng)
            loss.backward()
            optimizer.step()
            phase.step(loss=loss.item(), samples=len(pictures))
