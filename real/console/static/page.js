// The state of the page, and its connection to the server.

export const $ = (id) => document.getElementById(id);

export const page = {
  socket: null, token: "", name: "", you: null, tries: 0,
  keys: new Set(), down: new Set(), held: new Set(), stick: null, sequence: 0, sent: new Map(),
  steps: [], first: 0, episodes: [], bindings: {}, actions: [], state: null, about: {}, latencies: [],
  spacemouse: null,
  cameras: new Map(), listening: null, drawn: 0, receivedAt: 0, mode: "away", sound: true, hints: true, hintTone: true, audio: null, dirty: true,
};
// For tests and debugging.
window.handoff = page;

export function send(message) {
  if (page.socket?.readyState === WebSocket.OPEN) page.socket.send(JSON.stringify(message));
}
