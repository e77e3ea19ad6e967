// Package audit keeps an append-only record of what clients asked the service to change: who, what,
// which sandbox, and how it ended.
//
// The record is a file of JSON lines. Every line carries its own SHA-256 and that of the line
// before it, so that a byte that was changed and a line that was removed, repeated or moved are
// found by [Verify]. The chain cannot show that lines were cut off at the end; a hash kept on
// another machine detects that too. The chain has no key: it detects damage and mistakes, and with
// a kept hash also an intruder, who could otherwise recompute the whole chain.
//
// An intention is written before the request is acted on, its outcome afterwards. So what was acted
// on is in the file even when the process is killed in between; an intention without an outcome may
// or may not have been carried out.
package audit

import (
	"time"
)

// Kind says what a line is about.
type Kind string

// The kinds of lines.
const (
	KindAnchor  Kind = "anchor"  // the first line of every file
	KindStarted Kind = "started" // a service took the file up again
	// an incomplete last line was cut off after a crash; torn and torn_bytes describe it
	KindRepaired Kind = "repaired"
	KindIntent   Kind = "intent"  // a request is about to be acted on
	KindOutcome  Kind = "outcome" // how it ended
	// a request of a valid key that broke the contract, and was not acted on
	KindRefused Kind = "refused"
)

// Entry is what a line records about a request. Empty fields are left out.
type Entry struct {
	RequestID string `json:"request_id,omitempty"`
	Operation string `json:"operation,omitempty"`
	Method    string `json:"method,omitempty"`
	Route     string `json:"route,omitempty"`    // the template of the path
	KeyName   string `json:"key_name,omitempty"` // of the API key; empty when no key is configured
	Role      string `json:"role,omitempty"`
	Remote    string `json:"remote,omitempty"` // the peer's address
	SandboxID string `json:"sandbox_id,omitempty"`
	// SubjectKey is the name of the API key that the request makes, changes or removes.
	SubjectKey string `json:"subject_key,omitempty"`
	// SnapshotID is the snapshot that the request takes, deletes or uses.
	SnapshotID string `json:"snapshot_id,omitempty"`
	// Intent is the seq of the intention that an outcome belongs to.
	Intent uint64 `json:"intent,omitempty"`
	Status int    `json:"status,omitempty"` // the HTTP status
	Code   string `json:"code,omitempty"`   // of the error body
}

// line is one line of the file, without its hash. Prev, seq and kind come first.
type line struct {
	Prev string    `json:"prev"`
	Seq  uint64    `json:"seq"`
	Kind Kind      `json:"kind"`
	Time time.Time `json:"time"`
	Entry
	Torn      string `json:"torn,omitempty"`
	TornBytes int64  `json:"torn_bytes,omitempty"`
}
