/* Search for pages that are opened from the file system, where browsers start no worker: its script runs in a hidden frame.
   The generator would load such a script from a content delivery network; its name keeps it from doing so. */
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super()
      const address = new URL(url, location.href).href
      this.frame = document.createElement("iframe")
      this.frame.hidden = true
      this.ready = new Promise((resolve) => {
        this.frame.addEventListener("load", () => this.start(address, resolve), { once: true })
      })
      document.body.append(this.frame)
    }

    start(address, resolve) {
      const inside = this.frame.contentWindow
      inside.postMessage = (data) => setTimeout(() => this.receive(new MessageEvent("message", { data })))
      const script = inside.document.createElement("script")
      script.src = address
      script.onload = () => resolve(inside)
      script.onerror = () => this.receive(new Event("error"))
      inside.document.body.append(script)
    }

    receive(event) {
      this.dispatchEvent(event)
      this[`on${event.type}`]?.(event)
    }

    postMessage(data) {
      this.ready.then((inside) => inside.dispatchEvent(new MessageEvent("message", { data })))
    }

    terminate() {
      this.frame.remove()
    }
  }
}
