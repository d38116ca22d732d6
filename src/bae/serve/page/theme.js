// Before the first paint, so that a dark page is never white for a moment.
(function () {
  var theme = null;
  try {
    theme = localStorage.getItem("bae.theme");
  } catch (error) {
    // A browser may refuse storage: the theme of the system is shown.
  }
  if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
})();
