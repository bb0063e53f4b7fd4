// Fingers on the screen. A finger that is lifted releases what it held, as a key does (inputs.js). A finger that the
// system takes away, as for its own gesture or a call, was not lifted by the person: the arm holds still.

import { $, page, send } from "./page.js";

const hold = () => send({ kind: "press", action: "hold still" });

for (const control of document.querySelectorAll("[data-hold], .pad")) {
  control.addEventListener("pointercancel", () => { if (page.state?.controller === page.you) hold(); });
}

// Hold acts when it is touched; a click needs a finger that is lifted where it came down.
$("halt").addEventListener("pointerdown", hold);

// A finger that rests on a control must not open a menu, which takes the touch away.
addEventListener("contextmenu", (event) => {
  if (event.target.closest?.("[data-hold], #halt, .pad")) event.preventDefault();
});
