"""Opens a server's page in headless Chromium (Qt WebEngine), tries its adapters, and prints what it shows.

    python tests/cli/browser.py http://127.0.0.1:8000/ "all of the two" "some of the two" 1

The last argument is the number of fusions. The last line of output is JSON with the text of the tables and the number
of shaded cells. JavaScript errors are printed, and make the exit code 1.
"""

import os
import sys
from typing import Any

os.environ.setdefault("QT_QPA_PLATFORM", "offscreen")
# Containers may lack the privileges that Chromium's sandbox needs. We trust our own page, so disable it.
os.environ.setdefault("QTWEBENGINE_CHROMIUM_FLAGS", "--no-sandbox --disable-gpu")

from PyQt6.QtCore import QUrl
from PyQt6.QtWebEngineCore import QWebEnginePage
from PyQt6.QtWidgets import QApplication

# Waits for the adapters, submits the form, and waits until each adapter has a prediction.
SCRIPT = """
const texts = (table) => [...table.rows].map((row) => [...row.cells].map((cell) => cell.textContent));
const whenever = (isTrue) => new Promise((resolve) => {
  const check = () => { if (isTrue()) { observer.disconnect(); resolve(); } };
  const observer = new MutationObserver(check);
  observer.observe(document.body, { childList: true, subtree: true, characterData: true });
  check();
});
(async () => {
  await whenever(() => document.querySelectorAll("#adapters input").length > 0);
  const boxes = [...document.querySelectorAll("#adapters input")];
  document.getElementById("first").value = FIRST;
  document.getElementById("second").value = SECOND;
  document.querySelector("button").click();
  const body = document.getElementById("results").tBodies[0];
  await whenever(() => body.rows.length === boxes.filter((box) => box.checked).length
    && [...body.rows].every((row) => row.cells.length === 3)
    && document.querySelectorAll("#attention table").length === FUSIONS);
  const attention = [...document.querySelectorAll("#attention table")];
  console.log("RESULT " + JSON.stringify({
    adapters: boxes.map((box) => box.parentElement.textContent.trim()),
    results: texts(document.getElementById("results")),
    attention: attention.map((table) => ({ caption: table.caption.textContent, rows: texts(table) })),
    shaded: [...document.querySelectorAll("#attention td")].filter((cell) => cell.style.backgroundColor).length,
    message: document.getElementById("message").textContent,
  }));
})();
"""


def main() -> int:
    url, first, second, fusions = sys.argv[1:]
    application = QApplication(sys.argv[:1])

    class Page(QWebEnginePage):
        def javaScriptConsoleMessage(self, level: Any, message: Any, line: int, source: Any) -> None:  # noqa: N802
            is_result = str(message).startswith("RESULT ")
            print(str(message).removeprefix("RESULT "), flush=True)
            if is_result or level == QWebEnginePage.JavaScriptConsoleMessageLevel.ErrorMessageLevel:
                application.exit(0 if is_result else 1)

    page = Page()
    values = {"FIRST": first, "SECOND": second}
    script = SCRIPT.replace("FUSIONS", fusions)
    for name, value in values.items():
        script = script.replace(name, repr(value))
    page.loadFinished.connect(lambda is_loaded: page.runJavaScript(script) if is_loaded else application.exit(1))
    page.load(QUrl(url))
    return application.exec()


if __name__ == "__main__":
    sys.exit(main())
