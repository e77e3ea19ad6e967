// Package tasks is the contract between the controller and the task-executors in its pods: what a
// task is, what is said about one, and a client. The executor itself is taskexecutor;
// docs/kubernetes-resources.md describes the use of tasks.
//
// # The interface
//
// HTTP and JSON on port 5758 of the pod, inside the cluster only. Every request but GET /healthz
// carries a token in the header X-Task-Executor-Token: the controller's proof for this pod (Prove),
// or the executor's own token, when it has one.
//
//	PUT    /tasks/{name}           a Task     200 a Status: it is there (again); 409: there is another one of that name
//	GET    /tasks/{name}                      200 a Status; 404
//	GET    /tasks?wait=S&since=V              200 a List, at once, or when its version is another than V, at most S seconds later
//	DELETE /tasks/{name}?wait=S               204: there is none (any more); 202 a Status: it is still ending after S seconds
//	POST   /reset                             200 a ResetResult; 409
//	GET    /healthz                           200 {"status":"ok"}
//
// Everything else is an Error as JSON, with one of the codes below.
package tasks

import (
	"errors"
	"fmt"
	"path"
	"strings"
	"time"
)

const (
	// Port is the TCP port on which a task-executor listens.
	Port = 5758
	// Container is the name of the task-executor's container in a pod.
	Container = "task-executor"
	// TokenHeader is the header that carries the executor's token.
	TokenHeader = "X-Task-Executor-Token"
	// MainMarker is the variable that the main container of a pod must have, and no other: by it
	// the executor recognizes the container that tasks run in.
	MainMarker = "SANDBOX_MAIN=1"
	// MaxWait bounds how long a request may wait: what asks for more gets this much.
	MaxWait = time.Minute
	// DefaultGrace is how long a task's processes have to end, when the task does not say.
	DefaultGrace = 30 * time.Second
)

// Task says what to run. The strings are UTF-8 without NUL.
type Task struct {
	// Command is the program and its first arguments; a program without a slash is looked up in the
	// PATH of the task's environment.
	Command []string `json:"command"`
	// Args are further arguments.
	Args []string `json:"args,omitempty"`
	// Env is put on top of the environment of the main container; of two entries of one name the
	// last counts.
	Env []EnvVar `json:"env,omitempty"`
	// WorkingDir is an absolute path in the main container; empty means the working directory of
	// the main container's process.
	WorkingDir string `json:"workingDir,omitempty"`
	// TimeoutSeconds is how long the task may run, 0 to 31536000; with 0 for ever.
	TimeoutSeconds int64 `json:"timeoutSeconds,omitempty"`
	// Readiness, when set, must succeed once before the task counts as ready; else it is ready as
	// soon as it runs.
	Readiness *Readiness `json:"readiness,omitempty"`
	// GracePeriodSeconds is how long the task's processes have between SIGTERM and SIGKILL, 0 to
	// 3600; nil means DefaultGrace.
	GracePeriodSeconds *int64 `json:"gracePeriodSeconds,omitempty"`
}

// EnvVar is one variable of an environment.
type EnvVar struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

// Readiness is an HTTP GET inside the pod that must be answered with 200.
type Readiness struct {
	// Port is a TCP port of the pod, 1 to 65535.
	Port int `json:"port"`
	// Path is what is asked for, with a query if need be; empty means "/".
	Path string `json:"path,omitempty"`
}

// State is where a task is in its life.
type State string

// The states. A task never goes back, but from Unknown, and one that was started is never started
// again.
const (
	Pending   State = "Pending"   // recorded, and not started yet
	Running   State = "Running"   // the process runs
	Succeeded State = "Succeeded" // the process ended with exit code 0
	Failed    State = "Failed"    // it ended otherwise; Reason says how
	Unknown   State = "Unknown"   // the record cannot be read now
)

// Reasons of a status. Clients take others as the word of an executor newer than they are.
const (
	ReasonWaitingForMain = "WAITING_FOR_MAIN_CONTAINER" // Pending: there is no main container to run in yet
	ReasonStarting       = "STARTING"                   // Pending: about to run
	ReasonNotReady       = "NOT_READY"                  // Running: its readiness has not been answered yet
	ReasonExited         = "EXITED"                     // Failed: the exit code was not 0
	ReasonSignaled       = "SIGNALED"                   // Failed: a signal N ended it; the exit code is 128+N
	ReasonTimedOut       = "TIMED_OUT"                  // Failed: it was ended after TimeoutSeconds
	ReasonStartFailed    = "START_FAILED"               // Failed: there was no process to speak of; the message says why
	ReasonMainEnded      = "MAIN_CONTAINER_ENDED"       // Failed: the main container, which it ran in, ended
	ReasonStopped        = "EXECUTOR_STOPPED"           // Failed: it was ended together with the executor's container
	ReasonExecutorLost   = "EXECUTOR_LOST"              // Failed: its shim was killed, and with it how it ended was lost; it is not run again
	ReasonRecordDamaged  = "RECORD_DAMAGED"             // Unknown
)

// Status is what there is to say about a task.
type Status struct {
	Name  string `json:"name"`
	State State  `json:"state"`
	// Ready is true while the task runs and its readiness, if it has one, has been answered once.
	Ready bool `json:"ready"`
	// ExitCode is set when a process has ended: its exit code, or 128+N when signal N ended it.
	ExitCode *int `json:"exitCode,omitempty"`
	// Reason is one of the reasons above, and Message the same for people.
	Reason  string `json:"reason,omitempty"`
	Message string `json:"message,omitempty"`
	// StartedAt is when the task's process was started; FinishedAt when everything of it was gone.
	StartedAt  *time.Time `json:"startedAt,omitempty"`
	FinishedAt *time.Time `json:"finishedAt,omitempty"`
	// Deleting is true once the task's end was asked for; it is gone as soon as its processes are.
	Deleting bool `json:"deleting,omitempty"`
}

// Ended reports whether the state is one that the task stays in.
func (s Status) Ended() bool { return s.State == Succeeded || s.State == Failed }

// List is the state of all tasks, sorted by name.
type List struct {
	// Version is another one as soon as anything of Items is. It never comes back, not even after a
	// restart of the executor.
	Version int64    `json:"version"`
	Items   []Status `json:"items"`
}

// ResetResult says what a reset did.
type ResetResult struct {
	// Tasks are the names of the tasks that were ended and forgotten, sorted.
	Tasks []string `json:"tasks"`
	// KilledProcesses is how many processes of the main container were killed; 0 when it was not
	// running.
	KilledProcesses int `json:"killedProcesses"`
}

// Codes of errors.
const (
	CodeInvalidRequest   = "INVALID_REQUEST"        // 400
	CodeUnauthorized     = "UNAUTHORIZED"           // 401
	CodeNotFound         = "NOT_FOUND"              // 404
	CodeMethodNotAllowed = "METHOD_NOT_ALLOWED"     // 405
	CodeTaskDiffers      = "TASK_DIFFERS"           // 409: a task of that name has another body
	CodeTaskDeleting     = "TASK_DELETING"          // 409: the task of that name is still ending; the same request may succeed later
	CodeTooManyTasks     = "TOO_MANY_TASKS"         // 409
	CodeResetting        = "RESETTING"              // 409: a reset is going on; the same request may succeed later
	CodeMainIsProcess1   = "MAIN_CONTAINER_IS_INIT" // 409: the pod shares no process namespace, so the main container cannot be killed
	CodeBodyTooLarge     = "BODY_TOO_LARGE"         // 413
	CodeStopping         = "STOPPING"               // 503: the executor is about to end
	CodeInternal         = "INTERNAL"               // 500; the executor's log has the cause
)

// Error is an answer other than success.
type Error struct {
	// Status is the HTTP status.
	Status int `json:"-"`
	// Code is for programs, Message for people.
	Code    string `json:"code"`
	Message string `json:"message"`
}

func (e *Error) Error() string {
	return fmt.Sprintf("task-executor: %s (%d %s)", e.Message, e.Status, e.Code)
}

// HasCode reports whether err is, or wraps, an Error of that code.
func HasCode(err error, code string) bool {
	var e *Error
	return errors.As(err, &e) && e.Code == code
}

// Bounds of what a task may say.
const (
	// MaxBody is the largest body of a request, in bytes.
	MaxBody = 256 << 10

	maxTimeoutSeconds = 365 * 24 * 60 * 60
	maxGraceSeconds   = 60 * 60
	maxName           = 63
)

// CheckName returns an error that says which rule a task's name breaks: it must be a DNS label.
func CheckName(name string) error {
	ok := name != "" && len(name) <= maxName && name[0] != '-' && name[len(name)-1] != '-'
	for _, char := range []byte(name) {
		ok = ok && (char >= 'a' && char <= 'z' || char >= '0' && char <= '9' || char == '-')
	}
	if !ok {
		return fmt.Errorf("name: must be a DNS label (1 to %d of a-z, 0-9 and -, which neither begins nor ends it), got %q", maxName, cut(name))
	}
	return nil
}

// Validate returns an error that names the first field that breaks a rule, and the rule.
func (t Task) Validate() error {
	if len(t.Command) == 0 || t.Command[0] == "" {
		return errors.New("command: must name a program")
	}
	if err := errors.Join(checkWords("command", t.Command), checkWords("args", t.Args)); err != nil {
		return err
	}
	for i, variable := range t.Env {
		if variable.Name == "" || strings.ContainsAny(variable.Name, "=\x00") {
			return fmt.Errorf("env[%d].name: must be a name without \"=\" and NUL, got %q", i, cut(variable.Name))
		}
		if strings.ContainsRune(variable.Value, 0) {
			return fmt.Errorf("env[%d].value: must not contain a NUL byte", i)
		}
	}
	if t.WorkingDir != "" && (!path.IsAbs(t.WorkingDir) || strings.ContainsRune(t.WorkingDir, 0)) {
		return fmt.Errorf("workingDir: must be an absolute path without NUL, got %q", cut(t.WorkingDir))
	}
	if t.TimeoutSeconds < 0 || t.TimeoutSeconds > maxTimeoutSeconds {
		return fmt.Errorf("timeoutSeconds: must be 0 to %d, got %d", maxTimeoutSeconds, t.TimeoutSeconds)
	}
	if grace := t.GracePeriodSeconds; grace != nil && (*grace < 0 || *grace > maxGraceSeconds) {
		return fmt.Errorf("gracePeriodSeconds: must be 0 to %d, got %d", maxGraceSeconds, *grace)
	}
	if r := t.Readiness; r != nil {
		if r.Port < 1 || r.Port > 65535 {
			return fmt.Errorf("readiness.port: must be 1 to 65535, got %d", r.Port)
		}
		if r.Path != "" && (r.Path[0] != '/' || strings.ContainsFunc(r.Path, func(char rune) bool { return char <= ' ' || char == 0x7f })) {
			return fmt.Errorf("readiness.path: must begin with \"/\" and have no spaces or control characters, got %q", cut(r.Path))
		}
	}
	return nil
}

func checkWords(field string, words []string) error {
	for i, word := range words {
		if strings.ContainsRune(word, 0) {
			return fmt.Errorf("%s[%d]: must not contain a NUL byte", field, i)
		}
	}
	return nil
}

// Grace returns how long the task's processes have between SIGTERM and SIGKILL.
func (t Task) Grace() time.Duration {
	if t.GracePeriodSeconds == nil {
		return DefaultGrace
	}
	return time.Duration(*t.GracePeriodSeconds) * time.Second
}

// Timeout returns how long the task may run, 0 for ever.
func (t Task) Timeout() time.Duration { return time.Duration(t.TimeoutSeconds) * time.Second }

// cut keeps what a client sent from filling an error.
func cut(s string) string {
	if len(s) > 100 {
		return s[:100] + "..."
	}
	return s
}
