package app

import (
	"sandbox.internal/openapi/serve"
	"sandbox.internal/server/audit"
)

// What the tests look at from outside.
var (
	Addresses      = addresses
	SeccompProfile = seccompProfile
	APIKeys        = apiKeys
	Limits         = limits
	HostLoad       = hostLoad
	Ingress        = ingress
)

// AuditLog returns what writes requests into the log.
func AuditLog(log *audit.Log, failed func()) serve.AuditLog {
	return (&App{audit: log}).auditLog(failed)
}
