// Pages before Python objects among the results of a search (Sphinx, html_search_scorer).
var Scorer = {
  objNameMatch: 2,
  objPartialMatch: 1,
  objPrio: {0: 0, 1: 0, 2: 0},
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};
