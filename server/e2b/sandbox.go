package e2b

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"strings"
	"time"

	"github.com/google/uuid"

	"sandbox.internal/server/lifecycle"
)

// reserved begins the keys of metadata of this package: what a client asked for and the service has
// no field for. Clients of E2B do not see it.
const (
	reserved = "e2b.dev/"
	// deadlineKey is when the sandbox is to be ended or paused, RFC 3339. Every sandbox that was
	// created here has it.
	deadlineKey = reserved + "deadline"
	// timeoutKey is the timeout that the deadline was made with last, in seconds.
	timeoutKey = reserved + "timeout"
	// onTimeoutKey says what happens at the deadline: pause, or pauseFiles; absent for the end.
	onTimeoutKey = reserved + "on-timeout"
	// autoResumeKey is true for a sandbox that traffic resumes.
	autoResumeKey = reserved + "auto-resume"
	templateKey   = reserved + "template"
	userKey       = reserved + "user"
	directoryKey  = reserved + "directory"
	// privateKey is true for a sandbox whose ports need the traffic token.
	privateKey = reserved + "private"
	// offlineKey is true for a sandbox without access to the internet.
	offlineKey = reserved + "offline"
)

const (
	pause = "pause"
	// pauseFiles is a pause without the memory.
	pauseFiles = "pause-files"
	yes        = "true"
)

// envdVersion is what clients take the daemon for. It switches off what is not there: metadata of
// files and entries in events need 0.6.
const envdVersion = "0.5.7"

// externalID returns the id that clients of E2B get: they split names at dashes.
func externalID(id string) string { return strings.ReplaceAll(id, "-", "") }

// internalID returns the service's id for one that a client sends: with or without dashes.
func internalID(id string) (string, bool) {
	parsed, err := uuid.Parse(id)
	if err != nil || len(id) != 32 && len(id) != 36 {
		return "", false
	}
	return parsed.String(), true
}

// trafficToken returns what lets into the ports of a private sandbox.
func trafficToken(token string) string {
	mac := hmac.New(sha256.New, []byte(token))
	mac.Write([]byte("e2b traffic"))
	return hex.EncodeToString(mac.Sum(nil))
}

// info is a sandbox as E2B shows it.
type info struct {
	SandboxID  string            `json:"sandboxID"`
	TemplateID string            `json:"templateID"`
	Alias      string            `json:"alias,omitempty"`
	ClientID   string            `json:"clientID"`
	Metadata   map[string]string `json:"metadata"`
	State      string            `json:"state"`
	StartedAt  time.Time         `json:"startedAt"`
	EndAt      time.Time         `json:"endAt"`
	// CPUCount and MemoryMB are 0 where the sandbox is not limited.
	CPUCount    int64  `json:"cpuCount"`
	MemoryMB    int64  `json:"memoryMB"`
	DiskSizeMB  int64  `json:"diskSizeMB"`
	EnvdVersion string `json:"envdVersion"`

	// What follows is in the answers for one sandbox alone.
	EnvdAccessToken     string       `json:"envdAccessToken,omitempty"`
	TrafficAccessToken  *string      `json:"trafficAccessToken,omitempty"`
	Domain              *string      `json:"domain,omitempty"`
	AllowInternetAccess *bool        `json:"allowInternetAccess,omitempty"`
	Lifecycle           *lifecycleOf `json:"lifecycle,omitempty"`
	Network             *networkInfo `json:"network,omitempty"` // in the answer to GET alone
}

// lifecycleOf says what happens to a sandbox at its deadline and when traffic reaches it paused.
type lifecycleOf struct {
	OnTimeout  string `json:"onTimeout"`
	AutoResume bool   `json:"autoResume"`
}

// clientID is what old clients append to a sandbox's id; it has no meaning here.
const clientID = "00000000"

// infoOf returns a sandbox as clients see it in lists.
func infoOf(s lifecycle.Sandbox) info {
	shown := info{
		SandboxID: externalID(s.ID), TemplateID: s.Image, ClientID: clientID, Metadata: map[string]string{},
		State: "running", StartedAt: s.CreatedAt, EndAt: endOf(s),
		CPUCount: processors(s.Limits), MemoryMB: megabytes(s.Limits), EnvdVersion: envdVersion,
	}
	if isPaused(s.Status.State) {
		shown.State = "paused"
	}
	if template, ok := s.Metadata[templateKey]; ok {
		shown.TemplateID, shown.Alias = template, template
	}
	for key, value := range s.Metadata {
		if !strings.HasPrefix(key, reserved) {
			shown.Metadata[key] = value
		}
	}
	return shown
}

// detailed returns a sandbox as clients see it alone, without its tokens where token is empty.
func (e *Edge) detailed(s lifecycle.Sandbox, token string) info {
	shown := infoOf(s)
	shown.EnvdAccessToken = token
	if e.Domain != "" {
		shown.Domain = &e.Domain
	}
	if e.isPrivate(s) && token != "" {
		traffic := trafficToken(token)
		shown.TrafficAccessToken = &traffic
	}
	online := s.Metadata[offlineKey] != yes
	shown.AllowInternetAccess = &online
	shown.Lifecycle = &lifecycleOf{OnTimeout: "kill", AutoResume: s.Metadata[autoResumeKey] == yes}
	if pausesAtDeadline(s.Metadata) {
		shown.Lifecycle.OnTimeout = pause
	}
	return shown
}

// pausesAtDeadline reports whether a sandbox with this metadata is paused at its deadline.
func pausesAtDeadline(metadata map[string]string) bool {
	return metadata[onTimeoutKey] == pause || metadata[onTimeoutKey] == pauseFiles
}

// isPrivate reports whether the ports of a sandbox need its traffic token.
func (e *Edge) isPrivate(s lifecycle.Sandbox) bool {
	return e.HostNetwork || s.Metadata[privateKey] == yes || s.Metadata[lifecycle.SecureAccessKey] == yes
}

// endOf returns when the sandbox ends or is paused: the deadline that its client asked for, or the
// service's own expiry.
func endOf(s lifecycle.Sandbox) time.Time {
	if at, err := time.Parse(time.RFC3339Nano, s.Metadata[deadlineKey]); err == nil {
		return at
	}
	return s.ExpiresAt
}

func isPaused(state lifecycle.State) bool {
	return state == lifecycle.StatePaused || state == lifecycle.StateResuming
}

// isAlive reports whether E2B would have the sandbox: one that starts, ends or has ended it does
// not have.
func isAlive(state lifecycle.State) bool {
	switch state {
	case lifecycle.StateRunning, lifecycle.StatePausing, lifecycle.StatePaused, lifecycle.StateResuming:
		return true
	default:
		return false
	}
}
