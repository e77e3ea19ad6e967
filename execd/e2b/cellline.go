package e2b

import (
	"encoding/json"
	"fmt"
)

// The lines of an answer.
type (
	typeLine struct {
		Type string `json:"type"`
	}
	textLine struct {
		Type string `json:"type"`
		Text string `json:"text"`
	}
	errorLine struct {
		Type      string `json:"type"`
		Name      string `json:"name"`
		Value     string `json:"value"`
		Traceback string `json:"traceback"`
	}
	countLine struct {
		Type  string `json:"type"`
		Count int    `json:"execution_count"`
	}
)

// resultKeys are the members of a result for types of content. All others are in extra.
var resultKeys = map[string]string{
	"text/plain": "text", "text/html": "html", "text/markdown": "markdown", "image/svg+xml": "svg", "image/png": "png",
	"image/jpeg": "jpeg", "application/pdf": "pdf", "text/latex": "latex", "application/json": "json",
	"application/javascript": "javascript", "e2b/data": "data", "e2b/chart": "chart",
}

// resultOf converts a result. A member without content is absent.
func resultOf(detail []byte, main bool) (map[string]any, error) {
	var content map[string]json.RawMessage
	if err := json.Unmarshal(detail, &content); err != nil {
		return nil, fmt.Errorf("read a result: %w", err)
	}
	out := map[string]any{"type": "result", "is_main_result": main}
	extra := make(map[string]json.RawMessage)
	for media, value := range content {
		key, known := resultKeys[media]
		switch text := ""; {
		case !known:
			extra[media] = value
		case string(value) == "null":
		case media == "text/plain" && json.Unmarshal(value, &text) == nil:
			out[key] = unquote(text)
		default:
			out[key] = value
		}
	}
	if len(extra) > 0 {
		out["extra"] = extra
	}
	return out, nil
}

// unquote drops the quotes around what shows a string.
func unquote(text string) string {
	if len(text) >= 2 && (text[0] == '\'' || text[0] == '"') && text[len(text)-1] == text[0] {
		return text[1 : len(text)-1]
	}
	return text
}
