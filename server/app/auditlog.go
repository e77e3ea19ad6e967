package app

import (
	"net/url"
	"time"

	"github.com/rs/zerolog"

	"sandbox.internal/openapi/serve"
	"sandbox.internal/server/api"
	"sandbox.internal/server/audit"
	"sandbox.internal/server/lifecycle"
)

func (a *App) openAudit(path string) (err error) {
	if path != "" {
		a.audit, err = audit.Open(path, a.logger, time.Now)
	}
	return err
}

// Reopen begins a new audit log where the operator has renamed the old one. When that fails the old
// one stays in use.
func (a *App) Reopen() {
	if a.audit == nil {
		a.logger.Info().Msg("no audit log to reopen: server.audit_log is not set")
		return
	}
	if err := a.audit.Reopen(); err != nil {
		a.logger.Error().Err(err).Msg("cannot reopen the audit log")
	}
}

// auditLog returns what writes requests into the audit log, nil when there is none. Failed is
// called for each line that is lost.
func (a *App) auditLog(failed func()) serve.AuditLog {
	if a.audit == nil {
		return nil
	}
	return &auditLog{log: a.audit, logger: a.logger, failed: failed}
}

// auditLog writes what serve reports into the audit log.
type auditLog struct {
	log    *audit.Log
	logger zerolog.Logger
	failed func()
}

// Intend implements serve.AuditLog.
func (a *auditLog) Intend(admitted serve.Admission) (uint64, func() error, error) {
	seq, durable, err := a.log.Intend(entryOf(admitted))
	if err != nil {
		a.failed()
	}
	return seq, durable, err
}

// Conclude implements serve.AuditLog.
func (a *auditLog) Conclude(admitted serve.Admission, reference uint64, outcome serve.Outcome) {
	entry := entryOf(admitted)
	entry.Intent, entry.Status, entry.Code = reference, outcome.Status, outcome.Code
	if id, ok := outcome.Field("sandbox_id").(string); ok {
		entry.SandboxID = bounded(id)
	}
	if name, ok := outcome.Field(api.KeyField).(string); ok {
		entry.SubjectKey = name[:min(len(name), lifecycle.MaxKeyName)]
	}
	if id, ok := outcome.Field(api.SnapshotField).(string); ok {
		entry.SnapshotID = bounded(id)
	}
	if err := a.log.Conclude(entry); err != nil {
		a.failed()
		a.logger.Error().Err(err).Str("request_id", entry.RequestID).Str("operation", entry.Operation).Uint64("intent", reference).
			Int("status", entry.Status).Str("sandbox_id", entry.SandboxID).Msg("the outcome of a request is not in the audit log")
	}
}

func entryOf(admitted serve.Admission) audit.Entry {
	principal, _ := admitted.Principal.(lifecycle.Principal)
	return audit.Entry{
		RequestID:  admitted.RequestID,
		Operation:  admitted.Operation,
		Method:     bounded(admitted.Method),
		Route:      admitted.Route,
		KeyName:    principal.Name,
		Role:       string(principal.Role),
		Remote:     admitted.Remote,
		SandboxID:  bounded(admitted.Params["sandboxId"]),
		SubjectKey: subjectOf(admitted),
		SnapshotID: bounded(admitted.Params["snapshotId"]),
	}
}

// subjectOf returns the name in the path of a request about an API key, as people read it.
func subjectOf(admitted serve.Admission) string {
	name := admitted.Params["keyName"]
	if decoded, err := url.PathUnescape(name); err == nil {
		name = decoded
	}
	return name[:min(len(name), lifecycle.MaxKeyName)]
}

// bounded cuts what a client may have made longer than any id or method.
func bounded(text string) string { return text[:min(len(text), 64)] }
