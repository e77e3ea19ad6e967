(async () => {
	const home = %q, id = %q, result = {};
	const sandbox = home + '/console/api/v1/sandboxes/' + id;
	const attempt = async (name, action) => {
		try {
			result[name] = await action();
		} catch (error) {
			result[name] = 'refused: ' + error.name;
		}
	};
	const read = async (url, options) => {
		const response = await fetch(url, {credentials: 'include', ...options});
		return 'got ' + await response.text();
	};
	const json = {'Content-Type': 'application/json'};
	await attempt('read the session', () => read(home + '/console/session'));
	await attempt('read', () => read(sandbox));
	await attempt('with a header', () => read(sandbox, {headers: {'X-Sandbox-Console': 'x'}}));
	await attempt('take a ticket', () => read(home + '/console/tickets',
		{method: 'POST', headers: json, body: '{"path": "/v1/x"}'}));
	await attempt('delete', () => read(sandbox, {method: 'DELETE'}));
	await attempt('sign out', () => read(home + '/console/session', {method: 'DELETE'}));

	// What needs no permission of the other origin is sent, and must have no effect.
	const noCORS = {method: 'POST', mode: 'no-cors', credentials: 'include'};
	await attempt('no-cors pause', async () =>
		'refused: ' + (await fetch(sandbox + '/pause', noCORS)).type);
	await attempt('no-cors sign in', async () =>
		'refused: ' + (await fetch(home + '/console/session', {...noCORS, body: '{"key": "x"}'})).type);

	await attempt('a WebSocket', () => new Promise((resolve) => {
		const path = '/proxy/44772/pty/x/attach?console-ticket=x';
		const socket = new WebSocket(sandbox.replace('http', 'ws') + path);
		socket.onopen = () => resolve('got a connection');
		socket.onclose = () => resolve('refused: close');
	}));
	await attempt('a frame', () => new Promise((resolve) => {
		const frame = document.createElement('iframe');
		frame.src = home + '/console';
		frame.onload = () => {
			try {
				resolve('got ' + frame.contentWindow.document.title);
			} catch (error) {
				resolve('refused: ' + error.name);
			}
		};
		document.body.append(frame);
	}));
	await attempt('the storage', () => {
		const found = localStorage.getItem('sandbox-console-token');
		return found ? 'got ' + found : 'refused: empty';
	});
	await attempt('the cookie', () => {
		const found = document.cookie;
		return found ? 'got ' + found : 'refused: empty';
	});
	return JSON.stringify(result);
})()
