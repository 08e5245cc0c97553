"""Same-noise latents within a distance: relaxed, and simple.

Every token lies within `distance` of the one the target itself makes there, of the same noise, behind the same tokens.
"""

from __future__ import annotations

from torch import Tensor

from mmspec.continuous.law import Gaussian, LatentRule
from mmspec.noise import Draws


class Tolerance(LatentRule):
    """Keeps drafts near the target's own latent, and takes that where one is not.

    **Arguments:**

    - `distance`: root mean square over the coordinates, in units of the latents; 0 keeps equal latents only.
    """

    def __init__(self, distance: float) -> None:
        self.distance = distance

    def draw(self, law: Gaussian, normal: Tensor) -> Tensor:
        return law.mean.clone()

    def chance(self, p: Gaussian, q: Gaussian, x: Tensor) -> Tensor:
        return ((x - p.mean).square().mean(-1).sqrt() <= self.distance).to(x.dtype)

    def redraw(self, p: Gaussian, q: Gaussian, x: Tensor, draws: Draws) -> Tensor:
        return p.mean

    def excess(self, p: Gaussian, q: Gaussian, x: Tensor, chance: Tensor) -> Tensor:
        # Laws without a last step's noise share no mass unless they are the same.
        return chance * (x != p.mean).any(-1)
