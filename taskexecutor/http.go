package taskexecutor

import (
	"crypto/ed25519"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"sandbox.internal/internal/tasks"
)

// statuses are the HTTP statuses of the codes.
var statuses = map[string]int{
	tasks.CodeInvalidRequest:   http.StatusBadRequest,
	tasks.CodeUnauthorized:     http.StatusUnauthorized,
	tasks.CodeNotFound:         http.StatusNotFound,
	tasks.CodeMethodNotAllowed: http.StatusMethodNotAllowed,
	tasks.CodeTaskDiffers:      http.StatusConflict,
	tasks.CodeTaskDeleting:     http.StatusConflict,
	tasks.CodeTooManyTasks:     http.StatusConflict,
	tasks.CodeResetting:        http.StatusConflict,
	tasks.CodeMainIsProcess1:   http.StatusConflict,
	tasks.CodeBodyTooLarge:     http.StatusRequestEntityTooLarge,
	tasks.CodeStopping:         http.StatusServiceUnavailable,
	tasks.CodeInternal:         http.StatusInternalServerError,
}

// Access says which requests are served. The zero value serves every one.
type Access struct {
	// Token opens the interface; empty means that no fixed token does.
	Token string
	// Key is the controller's public key, whose proofs for the pod with the UID Pod open the
	// interface (tasks.Prove); nil for none.
	Key ed25519.PublicKey
	Pod string
}

// Open reports whether every request is served.
func (a Access) Open() bool { return a.Token == "" && a.Key == nil }

// Handler serves the interface that package internal/tasks describes.
func (e *Executor) Handler(access Access) http.Handler {
	a := &api{executor: e, access: access, token: sha256.Sum256([]byte(access.Token))}
	a.renew()
	mux := http.NewServeMux()
	mux.HandleFunc("/healthz", a.methods(map[string]operation{http.MethodGet: a.health}))
	mux.HandleFunc("/tasks", a.guarded(map[string]operation{http.MethodGet: a.list}))
	mux.HandleFunc("/tasks/{name}", a.guarded(map[string]operation{
		http.MethodGet: a.get, http.MethodPut: a.put, http.MethodDelete: a.delete,
	}))
	mux.HandleFunc("/reset", a.guarded(map[string]operation{http.MethodPost: a.reset}))
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		a.fail(w, r, refuse(tasks.CodeNotFound, "there is nothing at this path"))
	})
	return mux
}

type api struct {
	executor  *Executor
	access    Access
	token     [sha256.Size]byte
	challenge atomic.Value // string
}

// renew ends the validity of all proofs made so far.
func (a *api) renew() { a.challenge.Store(rand.Text()) }

// permits reports whether a request has the fixed token or a proof for the present challenge.
func (a *api) permits(r *http.Request) bool {
	if a.access.Open() {
		return true
	}
	sent := r.Header.Get(tasks.TokenHeader)
	given := sha256.Sum256([]byte(sent))
	if a.access.Token != "" && subtle.ConstantTimeCompare(given[:], a.token[:]) == 1 {
		return true
	}
	return a.access.Key != nil && tasks.Proven(a.access.Key, a.access.Pod, a.challenge.Load().(string), sent)
}

// operation answers with a status and a value, nil for none, or fails.
type operation func(r *http.Request) (int, any, error)

func (a *api) guarded(operations map[string]operation) http.HandlerFunc {
	next := a.methods(operations)
	return func(w http.ResponseWriter, r *http.Request) {
		if !a.permits(r) {
			if a.access.Key != nil {
				w.Header().Set(tasks.ChallengeHeader, a.challenge.Load().(string))
			}
			a.fail(w, r, refuse(tasks.CodeUnauthorized, "header %s: missing or wrong", tasks.TokenHeader))
			return
		}
		next(w, r)
	}
}

func (a *api) methods(operations map[string]operation) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		serve, ok := operations[r.Method]
		if !ok {
			a.fail(w, r, refuse(tasks.CodeMethodNotAllowed, "%s is not possible here", r.Method))
			return
		}
		r.Body = http.MaxBytesReader(w, r.Body, tasks.MaxBody)
		status, value, err := serve(r)
		if err != nil {
			a.fail(w, r, err)
			return
		}
		a.answer(w, status, value)
	}
}

func (a *api) answer(w http.ResponseWriter, status int, value any) {
	if value == nil {
		w.WriteHeader(status)
		return
	}
	data, err := json.Marshal(value)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError) // cannot happen: the values are ours
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(append(data, '\n')) // the client has left
}

func (a *api) fail(w http.ResponseWriter, r *http.Request, err error) {
	var refusal *tasks.Error
	if !errors.As(err, &refusal) {
		a.executor.Logger.Error().Err(err).Str("method", r.Method).Str("path", r.URL.Path).Msg("request failed")
		refusal = &tasks.Error{
			Status: http.StatusInternalServerError, Code: tasks.CodeInternal, Message: "this failed inside the task-executor; its log has the cause",
		}
	}
	a.answer(w, refusal.Status, refusal)
}

func (a *api) health(*http.Request) (int, any, error) {
	return http.StatusOK, map[string]string{"status": "ok"}, nil
}

func (a *api) list(r *http.Request) (int, any, error) {
	wait, err := waitOf(r)
	if err != nil {
		return 0, nil, err
	}
	since := int64(-1)
	if value := r.URL.Query().Get("since"); value != "" {
		if since, err = strconv.ParseInt(value, 10, 64); err != nil {
			return 0, nil, refuse(tasks.CodeInvalidRequest, "since: must be the version of a list, got %q", value)
		}
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	for {
		list, changed := a.executor.List()
		if list.Version != since {
			return http.StatusOK, fit(list), nil
		}
		select {
		case <-changed:
		case <-timer.C:
			return http.StatusOK, fit(list), nil
		case <-r.Context().Done():
			return http.StatusOK, list, nil // the client has left
		}
	}
}

// fit shortens the messages of a list that is larger than what clients read of an answer. The
// answer about one task has the whole message.
func fit(list tasks.List) tasks.List {
	for longest := 1 << 10; longest > 0; longest /= 2 {
		if data, err := json.Marshal(list); err != nil || len(data) < tasks.MaxAnswer {
			break
		}
		for i := range list.Items {
			if item := &list.Items[i]; len(item.Message) > longest {
				item.Message = strings.ToValidUTF8(item.Message[:longest], "") + "..."
			}
		}
	}
	return list
}

// waitOf reads how long a request may wait.
func waitOf(r *http.Request) (time.Duration, error) {
	value := r.URL.Query().Get("wait")
	if value == "" {
		return 0, nil
	}
	seconds, err := strconv.Atoi(value)
	if err != nil || seconds < 0 {
		return 0, refuse(tasks.CodeInvalidRequest, "wait: must be a number of seconds, 0 or more, got %q", value)
	}
	return min(time.Duration(min(seconds, 3600))*time.Second, tasks.MaxWait), nil
}

func (a *api) get(r *http.Request) (int, any, error) {
	status, err := a.executor.Get(r.PathValue("name"))
	return http.StatusOK, status, err
}

func (a *api) put(r *http.Request) (int, any, error) {
	data, err := io.ReadAll(r.Body)
	if tooLarge := (*http.MaxBytesError)(nil); errors.As(err, &tooLarge) {
		return 0, nil, refuse(tasks.CodeBodyTooLarge, "the body is larger than %d bytes", tooLarge.Limit)
	}
	if err != nil {
		return 0, nil, refuse(tasks.CodeInvalidRequest, "the body did not arrive: %v", err)
	}
	if !a.permits(r) {
		return 0, nil, refuse(tasks.CodeUnauthorized, "header %s: a reset has made it worthless while the body arrived", tasks.TokenHeader)
	}
	var task tasks.Task
	if err := decode(data, &task); err != nil {
		return 0, nil, refuse(tasks.CodeInvalidRequest, "the body is not a task: %v", err)
	}
	status, err := a.executor.Put(r.PathValue("name"), task)
	return http.StatusOK, status, err
}

func (a *api) delete(r *http.Request) (int, any, error) {
	wait, err := waitOf(r)
	if err != nil {
		return 0, nil, err
	}
	name := r.PathValue("name")
	if err := tasks.CheckName(name); err != nil {
		return 0, nil, refuse(tasks.CodeInvalidRequest, "%v", err)
	}
	gone, err := a.executor.Delete(name)
	if err != nil {
		return 0, nil, err
	}
	if gone == nil {
		return http.StatusNoContent, nil, nil
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-gone:
		return http.StatusNoContent, nil, nil
	case <-timer.C:
	case <-r.Context().Done():
	}
	status, err := a.executor.Get(name)
	if tasks.HasCode(err, tasks.CodeNotFound) {
		return http.StatusNoContent, nil, nil
	}
	return http.StatusAccepted, status, err
}

// reset also renews the challenge: whoever used the pod until now may have seen the proof.
func (a *api) reset(*http.Request) (int, any, error) {
	a.renew()
	result, err := a.executor.Reset()
	return http.StatusOK, result, err
}
