// Search runs in a worker, which browsers refuse to a page that is opened from a folder; there a hidden frame does its work.
// A polyfill whose name holds "iframe-worker" also keeps mkdocs-material from naming one on another machine.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      frame.srcdoc =
        '<script>const postMessage = (message) => parent.postMessage(message, "*");</script>' +
        `<script src="${new URL(url, document.baseURI)}"></script>`;
      this.frame = frame;
      this.loaded = new Promise((resolve) => frame.addEventListener("load", resolve, { once: true }));
      this.hear = (event) => {
        if (event.source === frame.contentWindow) {
          const { data } = event;
          this.dispatchEvent(new MessageEvent("message", { data }));
          this.onmessage?.({ data });
        }
      };
      window.addEventListener("message", this.hear);
      document.body.append(frame);
    }

    postMessage(message) {
      this.loaded.then(() => this.frame.contentWindow.postMessage(message, "*"));
    }

    terminate() {
      window.removeEventListener("message", this.hear);
      this.frame.remove();
    }
  };
}
