// What a person tells a policy that takes instructions, typed or spoken. What was heard is shown and can be changed
// before it is told; it holds from the next episode on.

import { $, page, send } from "./page.js";
import { releaseAll } from "./inputs.js";

const Recognition = window.SpeechRecognition ?? window.webkitSpeechRecognition;
let listening = null;

/** Shows the instruction that waits for the next episode, and the button for another one. */
export function showInstruction(about, state) {
  const { offered, next } = state.instruction ?? {};
  const running = about.instruction ? `“${about.instruction}”` : "";
  write("instruction", running);
  write("instruction-next", next ? `Next episode: “${next}”` : "");
  $("tell").hidden = !offered;
  $("tell").disabled = state.controller !== page.you;
  if (!offered && $("telling").open) $("telling").close();
}

function write(id, text) {
  if ($(id).textContent !== text) $(id).textContent = text;
}

// A person who reads this dialog does not watch the arm.
$("tell").onclick = () => {
  if (page.state?.controller === page.you) send({ kind: "press", action: "hold still" });
  releaseAll();
  $("telling-text").value = page.state?.instruction?.next || page.about.instruction || "";
  write("telling-heard", "");
  $("telling-speak").hidden = !Recognition;
  $("telling").showModal();
  $("telling-text").select();
};
$("telling-form").addEventListener("submit", (event) => {
  event.preventDefault();
  const text = $("telling-text").value.trim();
  if (!text) return;
  send({ kind: "instruct", text });
  $("telling").close();
});
$("telling-cancel").onclick = () => $("telling").close();
$("telling").addEventListener("close", () => { listening?.abort(); });
$("telling-speak").onclick = () => { if (listening) listening.stop(); else listen(); };

// Some browsers understand speech by themselves; the others send the sound to a server of their maker, which is said.
async function local(languages) {
  if (!Recognition.available) return false;
  const state = await Recognition.available({ langs: languages, processLocally: true }).catch(() => "");
  return state === "available";
}

async function listen() {
  const heard = new Recognition(), languages = [navigator.language];
  listening = heard;
  heard.lang = navigator.language;
  heard.interimResults = true;
  const here = await local(languages);
  if (here) heard.processLocally = true;
  const words = here ? "Listening." : "Listening. This browser sends what it hears to a server of its maker.";
  let why = "";
  heard.onstart = () => write("telling-heard", words);
  heard.onresult = (event) => {
    $("telling-text").value = [...event.results].map((result) => result[0].transcript).join(" ").trim();
  };
  heard.onerror = (event) => { why = event.error === "aborted" ? "" : `Nothing was understood (${event.error}). Type it, or speak again.`; };
  heard.onend = () => {
    listening = null;
    $("telling-speak").textContent = "Speak";
    write("telling-heard", why);
    $("telling-text").focus();
  };
  $("telling-speak").textContent = "Stop listening";
  if ($("telling").open) heard.start(); else listening = null;
}
