# %% [markdown]
# # Export and view a model
#
# Save Gaussians in every format that tsplat writes, compare sizes and losses, render a turntable, and look at the
# result.

# %%
from pathlib import Path

import matplotlib.pyplot as plt
import torch

from tsplat.scene import Camera, Gaussians, orbit, procedural_capture, read_model, write_model
from tsplat.training import Config, evaluate, fit, psnr
from tsplat.viewing import render, render_frames, write_frames

STEPS = 400
FRAMES = 24
device = "cuda" if torch.cuda.is_available() else "cpu"
folder = Path("exported")
folder.mkdir(exist_ok=True)

# %% [markdown]
# A model to save.

# %%
capture = procedural_capture(160, 120, n_train=24, n_test=2, n_points=6000).to(device)
# learning rates for a short run; the defaults of Config are for 30,000 steps
rates = dict(means_rate=1e-3, scales_rate=2e-2, quats_rate=1.5e-2, sh0_rate=1.5e-2, shN_rate=1.5e-3)
config = Config(steps=STEPS, background=capture.background, **rates)
start = Gaussians.from_points(capture.points, capture.colors, sh_degree=2)
scene = fit(start, capture.train, config)
quality = evaluate(scene, capture.test, background=capture.background).psnr
print(f"{len(scene)} Gaussians, PSNR {quality:.2f} dB on test views")
assert quality > 20

# %% [markdown]
# ## Formats
#
# `write_model` chooses the format by the name of the file, and `read_model` reads all of them. PLY stores every
# digit. The others are smaller and round values; `write_model` returns what is lost. How much that is can be seen by
# comparing renderings.

# %%
view = capture.test[0]


def image_of(model):
    return render(model.to(device), view.camera, background=capture.background)


exact = image_of(scene)
sizes = {}
for name in ("scene.ply", "scene.compressed.ply", "scene.splat", "scene.spz", "scene.sog"):
    lost = "; ".join(write_model(folder / name, scene)) or "nothing"
    sizes[name] = (folder / name).stat().st_size / len(scene)
    difference = float(psnr(image_of(read_model(folder / name)), exact))
    print(f"{name:21} {sizes[name]:6.1f} bytes per Gaussian, {difference:5.1f} dB; losses: {lost}")
    assert difference > 30
assert max(size for name, size in sizes.items() if name != "scene.ply") < sizes["scene.ply"] / 4

# %% [markdown]
# ## A turntable
#
# `orbit` places cameras around a point. `render_frames` renders one after the other, and `write_frames` writes a GIF,
# an `.mp4` or `.webm` video, or a folder of PNGs, depending on the name.

# %%
azimuths = [360 * i / FRAMES for i in range(FRAMES)]
viewmats = orbit((0.0, -0.2, 0.0), 4.3, azimuths, [28.0] * FRAMES)  # azimuths and elevations in degrees
cameras = [Camera(viewmat, view.camera.K.cpu(), view.width, view.height) for viewmat in viewmats]
frames = list(render_frames(scene, cameras, background=capture.background))
(depth,) = render_frames(scene, cameras[:1], show="depth")
write_frames(folder / "turntable.gif", frames, fps=12)

# %%
figure, axes = plt.subplots(1, 4, figsize=(14, 3.1), layout="constrained")
for axis, image in zip(axes, (frames[0], frames[FRAMES // 3], frames[2 * FRAMES // 3], depth)):
    axis.imshow(image.numpy(force=True))
    axis.set(xticks=[], yticks=[])
figure.savefig("export_and_view.png")

# %% [markdown]
# ## Viewing
#
# `tsplat view exported/scene.ply` prints the address of a page that shows the model in a web browser, with controls
# for cameras, depth, cropping and videos; it needs `pip install 'tsplat[viewer]'`. Any of the files above will do,
# several at once, or a run of `tsplat train`. `tsplat convert exported/scene.ply scene.sog` converts on the command
# line, and `tsplat info` prints what is in a file.
#
# To send a model to somebody, write one HTML file that shows it in a web browser, on a phone too, without network:
# `tsplat convert exported/scene.ply scene.html`.
