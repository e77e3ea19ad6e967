package enforcer

// What tests use of this package's own.
const (
	DecisionLimit = decisionLimit
	MaxKnown      = maxKnown
)

var NewDecisionLog = newDecisionLog
