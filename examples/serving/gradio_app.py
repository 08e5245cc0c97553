"""A Gradio app for `mmspec serve`: images that appear row by row, and speech. It needs gradio and openai."""

import base64
import io
import os
from collections.abc import Iterator

import gradio as gr
import openai
from PIL import Image

URL = os.environ.get("MMSPEC_URL", "http://127.0.0.1:8000/v1")
client = openai.OpenAI(base_url=URL, api_key=os.environ.get("MMSPEC_API_KEY", "none"))


def draw(prompt: str, seed: float) -> Iterator[Image.Image]:
    extra = {"seed": int(seed), "partial_images": 8}
    for event in client.images.generate(prompt=prompt, stream=True, extra_body=extra):
        image = Image.open(io.BytesIO(base64.b64decode(event.b64_json)))
        yield image.resize((512, 512), Image.Resampling.NEAREST)


def speak(text: str, voice: str, seed: float) -> bytes:
    extra = {"seed": int(seed)}
    return client.audio.speech.create(model="spoken", voice=voice, input=text, extra_body=extra).content  # MP3


with gr.Blocks(title="mmspec") as app:
    seed = gr.Number(0, label="Seed")
    with gr.Tab("Image"):
        prompt = gr.Textbox("a red circle above a blue square", label="Prompt")
        gr.Button("Generate").click(draw, [prompt, seed], gr.Image(label="Image"))
    with gr.Tab("Speech"):
        text = gr.Textbox("please turn on the red light", label="Text")
        voice = gr.Dropdown(["low", "high"], label="Voice")
        gr.Button("Speak").click(speak, [text, voice, seed], gr.Audio(label="Speech"))
app.launch()
