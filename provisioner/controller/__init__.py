"""The running service: one tick after another (:mod:`controller`), its eyes (:mod:`sense`) and hands (:mod:`act`)."""
