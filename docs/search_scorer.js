// Order of the results of the site's search: pages with tasks first, then reference, API and history last.
const FOLDERS = {"how-to": 4, tutorial: 4, explanation: 2, internals: -3, decisions: -4};
var Scorer = {
  score: ([page, , , , score]) =>
    score + (page.startsWith("reference/api/") ? -12 : FOLDERS[page.split("/")[0]] ?? 0),
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: {0: 15, 1: 5, 2: -5},
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};
