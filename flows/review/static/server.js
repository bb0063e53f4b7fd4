// The token and the name of the person, and the requests to the server.

export const $ = (id) => document.getElementById(id);

const fragment = location.hash.slice(1);
if (fragment) {
  sessionStorage.setItem("handoff-token", fragment);
  history.replaceState(null, "", location.pathname);
}
const theme = localStorage.getItem("handoff-theme");
if (theme) document.documentElement.dataset.theme = theme;

export const person = {
  token: sessionStorage.getItem("handoff-token") ?? "",
  name: localStorage.getItem("handoff-name") ?? "",
};

/** An answer of the server that refuses what was asked. */
export class Refused extends Error {}

async function request(path, options = {}) {
  if ($("login").open) throw new Refused("Enter your name and the token.");
  let response;
  try {
    response = await fetch(path, { ...options, headers: { Authorization: `Bearer ${person.token}` } });
  } catch {
    throw new Refused("The review does not answer. Was it ended? Changes so far are kept.");
  }
  if (response.ok) return response;
  const answer = await response.json().catch(() => ({}));
  if (response.status === 401) askToken(answer.why);
  throw new Refused(answer.why ?? `The server answered ${response.status}.`);
}

export const get = async (path) => (await request(path)).json();
export const getBlob = async (path) => (await request(path)).blob();
export const post = async (path, message) => (await request(path, { method: "POST", body: JSON.stringify({ ...message, name: person.name }) })).json();

// ---------------------------------------------------------------- name and token

let entered = null;

/** Resolves when name and token are known. */
export function enter() {
  return new Promise((resolve) => {
    entered = resolve;
    if ($("login").open) return;
    if (person.token && person.name) resolve(); else askToken("");
  });
}

function askToken(trouble) {
  if (trouble) {
    person.token = "";
    sessionStorage.removeItem("handoff-token");
  }
  $("person").value = person.name;
  $("token").value = person.token;
  $("login-trouble").textContent = trouble;
  if (!$("login").open) $("login").showModal();
  (person.name ? $("token") : $("person")).focus();
}

$("login").addEventListener("cancel", (event) => event.preventDefault());
$("login-form").addEventListener("submit", (event) => {
  event.preventDefault();
  person.name = $("person").value.trim();
  person.token = $("token").value.trim();
  if (!person.name || !person.token) return;
  localStorage.setItem("handoff-name", person.name);
  sessionStorage.setItem("handoff-token", person.token);
  $("login").close();
  entered?.();
});
