package guard

// What tests use of this package's own.
const DecisionLimit = decisionLimit

var NewDecisionLog = newDecisionLog
