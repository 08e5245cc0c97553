"use strict";
// Draws what the server streams: events of images and speech, and after each target call how many tokens it committed.

const FADE = 500; // milliseconds in which a token that was just committed glows
const still = matchMedia("(prefers-reduced-motion: reduce)");
const fault = document.getElementById("fault");

function color(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}

function sized(canvas) {
  const scale = devicePixelRatio || 1;
  const width = Math.max(1, Math.round(canvas.clientWidth * scale));
  const height = Math.max(1, Math.round(canvas.clientHeight * scale));
  if (canvas.width !== width || canvas.height !== height) { canvas.width = width; canvas.height = height; }
  const context = canvas.getContext("2d");
  context.clearRect(0, 0, width, height);
  return [context, width, height];
}

/** The events of a response, as the server sends them. */
async function* events(path, body, signal) {
  const headers = { "Content-Type": "application/json" };
  const key = document.getElementById("key").value;
  if (key) headers.Authorization = `Bearer ${key}`;
  const response = await fetch(path, { method: "POST", headers, body: JSON.stringify(body), signal });
  if (!response.ok) {
    const found = await response.json().catch(() => null);
    throw new Error(found?.error?.message ?? `the server answered ${response.status}`);
  }
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const parts = (rest + value).split("\n\n");
    rest = parts.pop();
    for (const part of parts) {
      const data = part.split("\n").filter((line) => line.startsWith("data: ")).map((line) => line.slice(6)).join("");
      if (!data) continue;
      const event = JSON.parse(data);
      if (event.type === "error") throw new Error(event.error.message);
      yield event;
    }
  }
}

/** A column of the comparison: what one recipe generates, and what it costs. */
class Panel {
  constructor(parent, title, isPlain) {
    const root = document.getElementById("panel").content.cloneNode(true).firstElementChild;
    parent.append(root);
    this.root = root;
    this.isPlain = isPlain;
    root.querySelector("h3").textContent = title;
    this.stage = root.querySelector(".stage");
    this.bars = root.querySelector(".calls");
    this.bars.setAttribute("aria-label", "tokens that each target call committed");
    this.clear();
  }

  clear() {
    this.steps = [];
    this.tokens = 0;
    for (const name of ["calls", "rate", "seconds", "first"]) this.show(name, "–");
    this.drawBars();
  }

  show(name, value) { this.root.querySelector(`[data-value="${name}"]`).textContent = value; }

  step(event) {
    this.steps.push({ ...event, start: this.tokens, shown: performance.now() });
    this.tokens += event.tokens;
    this.count(event.target_calls, event.seconds);
    this.drawBars();
  }

  count(calls, seconds) {
    this.show("calls", calls);
    this.show("rate", (this.tokens / Math.max(calls, 1)).toFixed(2));
    this.show("seconds", seconds.toFixed(2));
  }

  drawBars() {
    const [context, width, height] = sized(this.bars);
    const most = Math.max(8, ...this.steps.map((step) => step.tokens));
    const wide = Math.min(width / 24, width / Math.max(this.steps.length, 1));
    context.fillStyle = color(this.isPlain ? "plain" : "accent");
    this.steps.forEach((step, i) => {
      const tall = Math.max(2, (step.tokens / most) * height);
      context.fillRect(i * wide, height - tall, Math.max(wide * 0.75, 1), tall);
    });
  }
}

class ImagePanel extends Panel {
  constructor(parent, title, isPlain, model) {
    super(parent, title, isPlain);
    this.rows = model.rows;
    this.columns = model.columns;
    const [width, height] = model.size.split("x");
    this.stage.style.aspectRatio = `${width} / ${height}`;
    this.picture = document.createElement("img");
    this.picture.alt = `image by ${title}`;
    this.lights = document.createElement("canvas");
    this.lights.className = "lights";
    this.lights.setAttribute("aria-hidden", "true");
    this.stage.append(this.picture, this.lights);
  }

  clear() {
    super.clear();
    this.trace = [];
    this.picture?.removeAttribute("src");
  }

  take(event) {
    this.trace.push({ event, at: performance.now() - this.began });
    this.apply(event);
  }

  apply(event) {
    if (event.type === "generation.step") { this.step(event); this.glow(); }
    if (event.b64_json) this.picture.src = `data:image/${event.output_format};base64,${event.b64_json}`;
    if (event.usage) this.count(event.usage.target_calls, event.usage.seconds);
  }

  glow() {
    if (this.glowing) return;
    this.glowing = true;
    const frame = () => {
      const [context, width, height] = sized(this.lights);
      const now = performance.now(), wide = width / this.columns, tall = height / this.rows;
      const latest = this.steps.at(-1);
      let alive = false;
      context.fillStyle = color("glow");
      for (let i = this.steps.length - 1; i >= 0; i--) {
        const step = this.steps[i], age = now - step.shown;
        if (age > FADE) break;
        if (still.matches && step !== latest) continue;
        alive = true;
        context.globalAlpha = still.matches ? 0.6 : 0.85 * (1 - age / FADE);
        for (let at = step.start; at < step.start + step.tokens; at++) {
          const x = (at % this.columns) * wide, y = Math.floor(at / this.columns) * tall;
          context.fillRect(x + 1, y + 1, wide - 2, tall - 2);
        }
      }
      context.globalAlpha = 1;
      if (alive) requestAnimationFrame(frame); else this.glowing = false;
    };
    requestAnimationFrame(frame);
  }
}

class SpeechPanel extends Panel {
  constructor(parent, title, isPlain, model) {
    super(parent, title, isPlain);
    this.sampling = model.sampling_rate;
    this.wave = document.createElement("canvas");
    this.wave.className = "wave";
    this.wave.setAttribute("role", "img");
    this.wave.setAttribute("aria-label", `waveform by ${title}`);
    this.stage.append(this.wave);
    this.root.querySelector(".first").hidden = false;
    this.again = this.root.querySelector("[name=listen]");
    this.again.addEventListener("click", () => { player.stop(); player.play(this.join(), this.sampling); });
  }

  clear() {
    super.clear();
    this.chunks = [];
    this.heard = 0;
    if (this.again) this.again.hidden = true;
    if (this.wave) this.drawWave();
  }

  take(event) {
    if (event.type === "generation.step") this.step(event);
    if (event.type === "speech.audio.delta") {
      if (!this.chunks.length) this.show("first", ((performance.now() - this.began) / 1000).toFixed(2));
      const bytes = Uint8Array.from(atob(event.audio), (letter) => letter.charCodeAt(0));
      const samples = Float32Array.from(new Int16Array(bytes.buffer), (value) => value / 32768);
      this.chunks.push(samples);
      if (this.audible) player.play(samples, this.sampling);
      this.drawWave();
    }
    if (event.usage) { this.count(event.usage.target_calls, event.usage.seconds); this.again.hidden = false; }
  }

  join() {
    const all = new Float32Array(this.chunks.reduce((sum, chunk) => sum + chunk.length, 0));
    let at = 0;
    for (const chunk of this.chunks) { all.set(chunk, at); at += chunk.length; }
    return all;
  }

  drawWave() {
    const [context, width, height] = sized(this.wave);
    const samples = this.join(), shown = Math.max(samples.length, this.sampling * 2);
    context.fillStyle = color(this.isPlain ? "plain" : "accent");
    for (let x = 0; x < width; x += 2) {
      let peak = 0;
      for (let i = Math.floor((x / width) * shown); i < Math.min(((x + 2) / width) * shown, samples.length); i += 4) {
        peak = Math.max(peak, Math.abs(samples[i]));
      }
      const tall = Math.max(1, peak * height);
      context.fillRect(x, (height - tall) / 2, 1.4, tall);
    }
  }
}

/** Plays chunks without gaps, as they arrive. */
const player = {
  context: null, next: 0, sources: [],
  open() { this.context ??= new AudioContext(); this.context.resume(); },
  play(samples, rate) {
    this.open();
    if (!samples.length) return;
    const buffer = this.context.createBuffer(1, samples.length, rate);
    buffer.copyToChannel(samples, 0);
    const source = this.context.createBufferSource();
    source.buffer = buffer;
    source.connect(this.context.destination);
    this.next = Math.max(this.next, this.context.currentTime + 0.04);
    source.start(this.next);
    this.next += buffer.duration;
    this.sources.push(source);
  },
  stop() {
    for (const source of this.sources) source.stop();
    this.sources = [];
    this.next = 0;
  },
};

function verdict(section, fast, plain) {
  const line = section.querySelector(".verdict");
  line.replaceChildren();
  if (!fast || !plain) return;
  const strong = document.createElement("strong");
  strong.textContent = `${(plain.target_calls / fast.target_calls).toFixed(1)}x fewer target calls`;
  line.append(strong, `: ${fast.target_calls} instead of ${plain.target_calls}, in ${fast.seconds.toFixed(2)} s instead of ` +
    `${plain.seconds.toFixed(2)} s (${(plain.seconds / fast.seconds).toFixed(1)}x).` +
    (section.dataset.exact ? " Both are samples of the same distribution." : ""));
}

/** Wires a section: its form runs the recipe of the server, and then plain decoding. */
function wire(section, model, make, ask) {
  const form = section.querySelector("form"), stop = form.elements.stop, holder = section.querySelector(".panels");
  const fast = make(holder, `Speculative: ${model.recipe}`, false), plain = make(holder, "Plain decoding", true);
  if (model.exact) section.dataset.exact = "true";
  let running = null;

  async function one(panel, recipe) {
    panel.began = performance.now();
    const [path, body] = ask(form.elements);
    let usage = null;
    for await (const event of events(path, { ...body, model: model.id, recipe, steps: true }, running.signal)) {
      panel.take(event);
      usage = event.usage ?? usage;
    }
    return usage;
  }

  form.addEventListener("submit", async (submitted) => {
    submitted.preventDefault();
    running?.abort();
    const mine = running = new AbortController();
    fault.hidden = true;
    player.stop();
    fast.clear();
    plain.clear();
    fast.audible = true;
    verdict(section);
    plain.root.hidden = !form.elements.compare.checked;
    stop.disabled = false;
    section.setAttribute("aria-busy", "true");
    section.querySelector(".replay")?.setAttribute("hidden", "");
    try {
      // One after the other, so that they do not compete and the seconds can be compared.
      const mineFast = await one(fast, model.recipe);
      if (form.elements.compare.checked) verdict(section, mineFast, await one(plain, "plain"));
      section.querySelector(".replay")?.removeAttribute("hidden");
    } catch (error) {
      if (error.name !== "AbortError") { fault.textContent = error.message; fault.hidden = false; fault.scrollIntoView({ block: "nearest" }); }
    } finally {
      if (running === mine) { stop.disabled = true; section.setAttribute("aria-busy", "false"); running = null; }
    }
  });
  const halt = () => { running?.abort(); player.stop(); };
  stop.addEventListener("click", halt);
  section.addEventListener("keydown", (pressed) => { if (pressed.key === "Escape") halt(); });
  addEventListener("resize", () => { for (const panel of [fast, plain]) { panel.drawBars(); panel.drawWave?.(); } });
  section.hidden = false;
  return [fast, plain];
}

function replay(panels, factor) {
  const start = performance.now(), traces = panels.map((panel) => panel.trace);
  for (const panel of panels) { const kept = panel.trace; panel.clear(); panel.trace = kept; }
  const next = panels.map(() => 0);
  const mine = replay.current = {};
  const frame = () => {
    if (replay.current !== mine) return;
    const now = (performance.now() - start) / factor;
    panels.forEach((panel, i) => {
      while (next[i] < traces[i].length && traces[i][next[i]].at <= now) panel.apply(traces[i][next[i]++].event);
    });
    if (next.some((at, i) => at < traces[i].length)) requestAnimationFrame(frame);
  };
  requestAnimationFrame(frame);
}

async function start() {
  const key = document.getElementById("key");
  const headers = key.value ? { Authorization: `Bearer ${key.value}` } : {};
  const response = await fetch("/v1/models", { headers });
  const found = await response.json();
  if (!response.ok) throw new Error(found.error.message);
  const image = found.data.find((model) => model.kind === "image");
  const speech = found.data.find((model) => model.kind === "speech");
  if (image) {
    const section = document.getElementById("image");
    const panels = wire(section, image, (...given) => new ImagePanel(...given, image), (fields) => [
      "/v1/images/generations", { prompt: fields.text.value, seed: Number(fields.seed.value), stream: true },
    ]);
    section.querySelector("[name=replay]").addEventListener("click", () => {
      const shown = panels.filter((panel) => !panel.root.hidden);
      replay(shown, Number(section.querySelector("[name=factor]").value));
    });
    section.querySelector("form").addEventListener("submit", () => { replay.current = null; });
  }
  if (speech) {
    const section = document.getElementById("speech"), voices = section.querySelector("[name=voice]");
    for (const voice of speech.voices) voices.append(new Option(voice));
    voices.closest("label").hidden = !speech.voices.length;
    wire(section, speech, (...given) => new SpeechPanel(...given, speech), (fields) => {
      player.open();
      const body = { input: fields.text.value, seed: Number(fields.seed.value), stream_format: "sse", response_format: "pcm" };
      return ["/v1/audio/speech", { ...body, voice: fields.voice.value || "default", initial_codec_chunk_frames: 8 }];
    });
  }
  document.documentElement.dataset.ready = "true";
}

function begin() {
  start().then(() => { fault.hidden = true; }, (error) => { fault.textContent = error.message; fault.hidden = false; });
}
document.getElementById("unlock").addEventListener("submit", (submitted) => {
  submitted.preventDefault();
  document.getElementById("key").dispatchEvent(new Event("change"));
});
document.getElementById("key").addEventListener("change", () => { if (!document.documentElement.dataset.ready) begin(); });
begin();
