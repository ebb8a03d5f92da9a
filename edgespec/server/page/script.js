"use strict";
// The page works without this, too; with it, figures stay fresh, lines can be copied, and there is a chat.
const at = (id) => document.getElementById(id);
const page = document.documentElement;
let key = sessionStorage.getItem("key") || "";
let messages = [];
let running = null;

const headers = (more) => (key ? { ...more, Authorization: `Bearer ${key}` } : { ...more });
// who guessed a token -> its tint; the target's own have none, and other guesses are habit
const TINTS = { target: "", model: "draft", grammar: "grammar", lookup: "lookup", history: "lookup" };

async function refresh() {
  const locked = page.dataset.key === "required" && !key;
  at("keys").hidden = !locked;
  at("chat").hidden = locked;
  if (locked) return;
  let answer = null;
  try { answer = await fetch("/edgespec/page/now", { headers: headers() }); } catch { /* it has ended */ }
  if (answer?.ok) {
    const text = await answer.text();
    if (!at("now").contains(document.activeElement)) at("now").innerHTML = text;
  } else if (!answer) {
    at("now").querySelector(".status")?.replaceWith(element("p", "status bad", "the server does not answer"));
  }
  const refused = answer?.status === 401; // a wrong key, or one that is no longer accepted
  at("keys").hidden = !refused;
  at("chat").hidden = refused;
}

function element(name, kind, text = "") {
  const made = document.createElement(name);
  made.className = kind;
  made.textContent = text;
  return made;
}

async function copy(button) {
  const lines = button.closest(".setup").querySelector("pre");
  try {
    await navigator.clipboard.writeText(lines.textContent);
  } catch { // without TLS there is no clipboard on other machines
    getSelection().selectAllChildren(lines);
    document.execCommand("copy");
  }
  button.textContent = "Copied";
  setTimeout(() => { button.textContent = "Copy"; }, 1500);
}

async function* events(answer) {
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (let read = await reader.read(); !read.done; read = await reader.read()) {
    const parts = (rest + read.value).split("\n\n");
    rest = parts.pop();
    for (const part of parts) {
      const data = part.split("\n").filter((line) => line.startsWith("data: ")).map((line) => line.slice(6));
      if (data.length && data[0] !== "[DONE]") yield JSON.parse(data.join("\n"));
    }
  }
}

function show(text, round) {
  round.pieces.forEach((piece, i) => {
    const tint = TINTS[round.sources[i]] ?? "recycling";
    const last = text.lastChild;
    if (last && last.className === tint) last.textContent += piece;
    else text.append(element("span", tint, piece));
  });
}

function figures(told) {
  const speed = told.seconds ? told.tokens / told.seconds : told.timings?.predicted_per_second;
  const words = [`${told.tokens} tokens`];
  if (speed) words.push(`${speed.toFixed(1)} tok/s`);
  if (told.drafted) words.push(`${told.accepted} of ${told.drafted} guesses right`);
  return words.join(", ");
}

async function answer(place, plain, lane) {
  const text = place.appendChild(element("p", "text"));
  const below = place.appendChild(element("p", "figures dim", "..."));
  const told = { tokens: 0, seconds: 0, drafted: 0, accepted: 0 };
  const edgespec = { events: true, ...(plain ? { speculation: false } : {}), ...(lane ? { lane } : {}) };
  let said = "";
  try {
    const got = await fetch("/v1/chat/completions", {
      method: "POST",
      headers: headers({ "Content-Type": "application/json" }),
      signal: running.signal,
      body: JSON.stringify({ messages, stream: true, edgespec, ...(lane ? { seed: 1 } : {}) }),
    });
    if (!got.ok) throw new Error((await got.json()).error.message);
    for await (const chunk of events(got)) {
      if (chunk.error) throw new Error(chunk.error.message);
      said += chunk.choices?.[0]?.delta?.content ?? "";
      const round = chunk.edgespec;
      if (round) {
        show(text, round);
        told.tokens += round.tokens.length;
        told.seconds += round.seconds ?? 0;
        told.drafted += round.drafted;
        told.accepted += round.accepted;
      }
      told.timings = chunk.timings ?? told.timings;
      below.textContent = figures(told);
    }
  } catch (error) {
    if (error.name === "AbortError") below.textContent += " (stopped)";
    else below.replaceWith(element("p", "figures error", error.message));
  }
  return said;
}

async function send() {
  const question = at("question").value.trim();
  if (!question || running) return;
  const beside = at("beside").checked;
  running = new AbortController();
  at("send").disabled = true;
  at("stop").disabled = false;
  at("question").value = "";
  messages.push({ role: "user", content: question });
  at("talk").append(element("p", "question", question));
  const places = at("talk").appendChild(element("div", "answers"));
  const asked = [["with guesses", false], ["plain", true]].slice(0, beside ? 2 : 1).map(([title, plain]) => {
    const place = places.appendChild(element("div", "answer"));
    if (beside) place.append(element("h3", "", title));
    return answer(place, plain, beside ? title : "");
  });
  const [said] = await Promise.all(asked);
  messages.push({ role: "assistant", content: said });
  running = null;
  at("send").disabled = false;
  at("stop").disabled = true;
  refresh();
}

page.classList.add("js");
document.querySelectorAll(".copy").forEach((button) => { button.hidden = false; });
document.addEventListener("click", (event) => {
  if (event.target.matches(".copy")) copy(event.target);
  if (event.target.matches(".change")) {
    const body = JSON.stringify({ action: event.target.textContent, model: event.target.dataset.model });
    event.target.disabled = true;
    event.target.blur();
    fetch("/edgespec/models", { method: "POST", headers: headers({ "Content-Type": "application/json" }), body });
    setTimeout(refresh, 300);
  }
});
document.addEventListener("keydown", (event) => { if (event.key === "Escape") running?.abort(); });
at("question").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    send();
  }
});
at("ask").addEventListener("submit", (event) => { event.preventDefault(); send(); });
at("stop").addEventListener("click", () => running?.abort());
at("clear").addEventListener("click", () => { running?.abort(); messages = []; at("talk").replaceChildren(); });
at("keys").addEventListener("submit", (event) => {
  event.preventDefault();
  key = at("key").value.trim();
  sessionStorage.setItem("key", key);
  refresh();
});
refresh();
setInterval(() => { if (!document.hidden) refresh(); }, 2000);
