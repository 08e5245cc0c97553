"""A grid of sixteen images of the embedded model with their prompts, as in the README.

python examples/embedded/shapes_grid.py -o examples/shapes.png
"""

from __future__ import annotations

import argparse

from train_shapes.evaluate import image_grid

import mmspec

PROMPTS = [
    "a red circle above a blue square",
    "a large green star",
    "a small orange star left of a large purple triangle",
    "a yellow cross below a red star on a checkered teal background",
    "a large blue triangle right of a small yellow circle on a plain white background",
    "a green square above an orange cross",
    "a purple star left of a green circle on a black background",
    "a small red square on a speckled pink background",
    "a blue star below a yellow star",
    "a large orange circle right of a large blue star",
    "a purple cross",
    "a small green triangle above a small red star on a plain gray background",
    "a yellow square left of a purple star on a checkered black background",
    "a large red cross below a small blue circle",
    "an orange triangle on a striped white background",
    "a green star right of a yellow triangle",
]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", default="shapes.png")
    parser.add_argument("--recipe", default="scd")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    pipe = mmspec.load("shapes")
    out = pipe(PROMPTS, recipe=args.recipe, seed=args.seed, output_type="pt")
    image_grid(out.images * 2 - 1, PROMPTS, columns=4).save(args.output)
    print(out.stats)


if __name__ == "__main__":
    main()
