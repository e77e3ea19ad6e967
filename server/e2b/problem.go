package e2b

import (
	"encoding/json"
	"net/http"

	"sandbox.internal/server/internal/subrequest"
)

// problem is the body of an error of E2B's API: code is the status.
type problem struct {
	Code    int    `json:"code"`
	Message string `json:"message"`
}

func sendProblem(w http.ResponseWriter, status int, message string) {
	sendJSON(w, status, problem{Code: status, Message: message})
}

func sendJSON(w http.ResponseWriter, status int, value any) {
	body, err := json.Marshal(value)
	if err != nil {
		panic(err) // strings, numbers and what came from JSON can be encoded
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(append(body, '\n')) // a client that is gone by now needs no answer
}

// refuse answers with the service's refusal in E2B's form.
func (x *exchange) refuse(found *subrequest.Response) {
	var own struct {
		Code    string `json:"code"`
		Message string `json:"message"`
	}
	_ = json.Unmarshal(found.Body.Bytes(), &own) // a body of another form has no message
	status := found.Status
	switch {
	case found.TooLarge:
		status, own.Message = http.StatusInternalServerError, "the service's answer is too large"
	case status == http.StatusConflict && x.creates:
		// A quota is used up. Clients take 429 for it, and repeat only with Retry-After.
		status = http.StatusTooManyRequests
	case status == http.StatusConflict:
		// Clients take any 409 for "is paused already".
		status = http.StatusBadRequest
	case status < http.StatusBadRequest:
		status = http.StatusInternalServerError
	}
	if own.Message == "" {
		own.Message = http.StatusText(status)
	}
	for _, name := range []string{"Retry-After", "WWW-Authenticate"} {
		if value := found.Header().Get(name); value != "" && (name != "Retry-After" || found.Status != http.StatusConflict) {
			x.w.Header().Set(name, value)
		}
	}
	sendProblem(x.w, status, own.Message)
}
