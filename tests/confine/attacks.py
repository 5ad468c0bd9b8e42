"""Small programs that code in a box may try: what each attempts, and its code, which raises or gives False when blocked.

``V`` is a folder outside with secrets and services, ``W`` the workspace, ``vp`` a process outside of the same user. The first
thirty are those by which code that an allowed tool runs got around governance inside the process.
Should one work, it harms nothing but ``V``.
"""

from __future__ import annotations

PREPARED = """
import array, ctypes, fcntl, http.client, json, mmap, os, signal, socket, struct, subprocess, sys, time
V, W, vp, tcp, udp = {outside!r}, os.getcwd(), {pid}, {tcp}, {udp}
lib = ctypes.CDLL(None, use_errno=True)
py = sys.executable
def sh(text): return subprocess.run(text, shell=True, capture_output=True, text=True, timeout=20)
def call(number, *given): return lib.syscall(number, *given) >= 0
def unix(path, kind=socket.SOCK_STREAM): socket.socket(socket.AF_UNIX, kind).connect(path)
worked = []
for name, code in {attacks!r}.items():
    space = dict(globals())
    try:
        exec("def attack():\\n    " + code.replace("\\n", "\\n    "), space)
        answer = space["attack"]()
        if answer is None or answer:
            worked.append(name)
    except BaseException as error:
        pass
print(json.dumps(worked))
"""

#: Numbers of system calls are those of x86-64; on aarch64 the same attacks go through libc where it has a function.
ATTACKS = {
    "an isolated Python child writes outside": (
        "return subprocess.run([py, '-I', '-c', f'open({V!r} + \"/w\", \"w\")'], capture_output=True).returncode == 0"
    ),
    "a shell without environment removes a file": "return sh(f'env -i /bin/rm {V}/precious').returncode == 0",
    "exec reads a private key": "return 'KEY' in open(V + '/home/.ssh/id_rsa').read()",
    "a child reads .env in the workspace": "return 'SECRET' in sh(f'cat {W}/.env').stdout",
    "reads /etc/shadow": "return open('/etc/shadow').read()",
    "reads the environment of another process": "return open(f'/proc/{vp}/environ', 'rb').read()",
    "TCP to a local service": "socket.create_connection(('127.0.0.1', tcp), 2)",
    "UDP out": "socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('127.0.0.1', udp))",
    "a unix socket outside": "unix(V + '/docker.sock')",
    "a unix socket of a program outside, in the workspace": "unix(W + '/dev.sock')",
    "the same socket under another name": "os.rename(W + '/dev.sock', W + '/d')\nunix(W + '/d')",
    "an abstract unix socket": "unix(chr(0) + 'lgov-attack-' + str(tcp))",
    "MPTCP": "s = socket.socket(socket.AF_INET, socket.SOCK_STREAM, 262)\ns.settimeout(2)\ns.connect(('127.0.0.1', tcp))",
    "TCP fast open": "s = socket.socket()\ns.settimeout(2)\ns.sendto(b'x', 0x20000000, ('127.0.0.1', tcp))",
    "signals another process": "os.kill(vp, 0)",
    "attaches to another process": "return lib.ptrace(16, vp, 0, 0) == 0",
    "reads the memory of another process": "b = ctypes.create_string_buffer(32)\nreturn call(310, vp, b, 1, b, 1, 0)",
    "changes a mode outside": "os.chmod(V + '/mode', 0o777)",
    "truncates a file outside": "os.truncate(V + '/trunc', 0)",
    "links a secret into the workspace": "os.link(V + '/home/.ssh/id_rsa', W + '/l')",
    "writes through a symbolic link": "os.symlink(V, W + '/s')\nopen(W + '/s/w19', 'w')",
    "moves a file out of the workspace": "open(W + '/mv', 'w')\nos.rename(W + '/mv', V + '/mv')",
    "new user and mount namespaces": "return sh('unshare -rm true').returncode == 0",
    "io_uring": "return call(425, 4, ctypes.create_string_buffer(200))",
    "may gain privileges": "return 'NoNewPrivs:\\t0' in open('/proc/self/status').read()",
    "reads a disk": "return any(open('/dev/' + d, 'rb').read(16) for d in ('vda', 'sda', 'nvme0n1'))",
    "CONNECT to a host that no rule names": (
        "p = os.environ['HTTPS_PROXY'][7:].split(':')\nc = http.client.HTTPConnection(p[0], int(p[1]), timeout=3)\n"
        "c.request('CONNECT', f'127.0.0.1:{tcp}')\nreturn c.getresponse().status == 200"
    ),
    "adds to the user's .bashrc": "open(V + '/home/.bashrc', 'a').write('id')",
    "rewrites the record": "open(V + '/audit.db', 'r+b').write(b'zz')",
    "undoes governance in its own process": "return True",
    "writes its own memory through /proc": (
        "f = open('/proc/self/mem', 'r+b', 0)\nb = ctypes.create_string_buffer(b'a')\nf.seek(ctypes.addressof(b))\n"
        "f.write(b'b')\nreturn b.raw[:1] == b'b'"
    ),
    "starts 400 processes": "ps = [subprocess.Popen(['sleep', '2']) for _ in range(400)]\n[p.kill() for p in ps]",
    # ------------------------------------------------------------------ files
    "reads the record in the workspace": "return open(W + '/.lgov/audit.db', 'rb').read()",
    "removes the record's folder": "import shutil\nshutil.rmtree(W + '/.lgov')\nreturn not os.path.exists(W + '/.lgov')",
    "moves the record's folder away": "os.rename(W + '/.lgov', W + '/other')",
    "makes the hidden file readable": "os.chmod(W + '/.env', 0o644)\nreturn open(W + '/.env').read()",
    "removes what hides a file": "os.unlink(W + '/.env')\nreturn open(W + '/.env').read()",
    "changes the policy file": "open(W + '/policy.yaml', 'a').write('#')",
    "replaces the policy file": "open(W + '/p', 'w').write('x')\nos.replace(W + '/p', W + '/policy.yaml')",
    "writes a git hook": "os.makedirs(W + '/.git/hooks', exist_ok=True)\nopen(W + '/.git/hooks/pre-commit', 'w')",
    "has git take its configuration from another folder": "open(W + '/.git/commondir', 'w').write('../evil')",
    "writes the configuration of a worktree": "open(W + '/.git/config.worktree', 'w')",
    "moves .git away to make its own": "os.rename(W + '/.git', W + '/.git2')",
    "writes into a nested repository": "open(W + '/sub/.git/config', 'w')",
    "points a submodule elsewhere": "open(W + '/module/.git', 'w').write('gitdir: ../evil')",
    "moves a nested repository away": "os.rename(W + '/sub', W + '/sub2')",
    "writes into a bare repository": "open(W + '/bare/config', 'a')",
    "adds to a Python environment": "open(W + '/env/lib/evil.pth', 'w')",
    "replaces a Python environment": "os.rename(W + '/env', W + '/env2')",
    "changes the active environment": "open(os.environ['VIRTUAL_ENV'] + '/evil.pth', 'w')",
    "writes into Python's packages": "os.open(json.__file__, os.O_WRONLY)",
    "writes into the folder of lgov": "import lgov_core\nos.open(lgov_core.__file__, os.O_WRONLY)",
    "reads the user's real home folder": "return os.listdir(V + '/home/.ssh')",
    "reaches the old root through a process": (
        "for p in ('self', '1', str(os.getppid())):\n    if os.path.exists(f'/proc/{p}/root' + V + '/precious'):\n"
        "        return open(f'/proc/{p}/root' + V + '/precious').read()\nreturn False"
    ),
    "reaches a file by its descriptor outside": "return os.path.exists(f'/proc/{vp}/cwd')",
    "reads the command lines of others": (
        "found = [p for p in os.listdir('/proc') if p.isdigit()]\n"
        "return any('sleep-' + 'outside' in open(f'/proc/{p}/cmdline').read() for p in found)"
    ),
    "makes a device": "os.mknod(W + '/dev', 0o600 | 0o020000, os.makedev(1, 1))",
    "sets the kernel's core pattern": "os.open('/proc/sys/kernel/core_pattern', os.O_WRONLY)",
    "writes to sysfs or a control group": "os.open('/sys/fs/cgroup/cgroup.procs', os.O_WRONLY)",
    "triggers a kernel key": "os.open('/proc/sysrq-trigger', os.O_WRONLY)",
    "opens a file by its handle": "return call(304, -100, ctypes.create_string_buffer(128), 0)",
    # ------------------------------------------------------------------ privileges and the kernel
    "makes a program set-user-id": "os.chmod(V + '/precious', 0o4755)",
    "set-user-id copy in the workspace": (
        "import shutil\nshutil.copy('/usr/bin/true', W + '/id')\nos.chmod(W + '/id', 0o4755)"
    ),
    "set-group-id file": "f = open(W + '/sgid', 'w')\nos.fchmod(f.fileno(), 0o2755)",
    "makes a file set-user-id": "os.open(W + '/suid', os.O_CREAT, 0o4755)",
    "makes a nameless file set-user-id": "os.open(W, os.O_TMPFILE | os.O_RDWR, 0o4755)",
    "a node that is set-user-id": "os.mknod(W + '/node', 0o104755)",
    "set-user-id by fchmodat2": "open(W + '/f2', 'w')\nreturn call(452, -100, (W + '/f2').encode(), 0o4755, 0)",
    "has a privilege": "return 'CapEff:\\t0000000000000000' not in open('/proc/self/status').read()",
    "becomes another user": "os.setuid(12345)",
    "changes the root": "os.chroot(W)",
    "mounts": "return lib.mount(b'tmpfs', W.encode(), b'tmpfs', 0, None) == 0",
    "unmounts what hides a file": "return lib.umount2((W + '/.env').encode(), 2) == 0",
    "remounts the root writable": "return lib.mount(None, b'/', None, 32 | 4096, None) == 0",
    "new namespaces by clone": "return call(56, 0x10000000 | 17, 0, 0, 0, 0)",
    "new namespaces by clone3": "return call(435, struct.pack('QQQQQQQQ', 0x10000000, 0, 0, 0, 17, 0, 0, 0), 64)",
    "joins a namespace": "return call(308, os.open('/proc/1/ns/net', 0), 0)",
    "bpf": "return call(321, 0, ctypes.create_string_buffer(128), 72)",
    "perf events": "return call(298, ctypes.create_string_buffer(b'\\0' * 128), 0, -1, -1, 0)",
    "userfaultfd": "return call(323, 1)",
    "the user's keyring": "return call(250, 0, -4, 1)",
    "the kernel's log": "return call(103, 3, ctypes.create_string_buffer(4096), 4096)",
    "types into the terminal": "return fcntl.ioctl(0, 0x5412, b'x') is not None",
    "steals a descriptor": "return call(438, os.pidfd_open(os.getppid()), 0, 0)",
    "system calls of the x32 interface": (
        "p = os.fork()\nif p == 0:\n    call(0x40000000 + 39)\n    os._exit(0)\nreturn os.waitpid(p, 0)[1] == 0"
    ),
    # ------------------------------------------------------------------ network
    "a packet socket": "socket.socket(socket.AF_PACKET, socket.SOCK_RAW)",
    "a raw socket": "socket.socket(socket.AF_INET, socket.SOCK_RAW, 1)",
    "netlink": "socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)",
    "a socket to the hypervisor": "socket.socket(socket.AF_VSOCK, socket.SOCK_STREAM)",
    "a name through DNS": "return socket.gethostbyname('example.com')",
    "cloud metadata": "socket.create_connection(('169.254.169.254', 80), 2)",
    "cloud metadata through the proxy": (
        "p = os.environ['HTTP_PROXY'][7:].split(':')\nc = http.client.HTTPConnection(p[0], int(p[1]), timeout=3)\n"
        "c.request('GET', 'http://169.254.169.254/latest/')\nreturn c.getresponse().status != 403"
    ),
    "smuggles a host past the proxy": (
        "p = os.environ['HTTPS_PROXY'][7:].split(':')\ns = socket.create_connection((p[0], int(p[1])), 3)\n"
        "s.sendall(f'CONNECT allowed.example:443@127.0.0.1:{tcp} HTTP/1.1\\r\\n\\r\\n'.encode())\nreturn b' 200' in s.recv(100)"
    ),
    "IPv6 to this machine": "socket.create_connection(('::1', tcp), 2)",
    "writes the audit of a decision as the proxy": (
        "from lgov_core.confine.broker import Broker\n"
        "b = Broker(json.loads(os.environ['LGOV_CHILD'])['governance']['broker'])\n"
        "fields = dict(kind='decision', policy='confinement')\n"
        "return 'id' in b.ask(dict(do='append', prefix='aud', fields=fields, arguments=None, content=None))"
    ),
    # ------------------------------------------------------------------ processes
    "ends another process": "os.kill(vp, signal.SIGTERM)",
    "shared memory of another program": "return open('/dev/shm/lgov-attack').read()",
    "System V shared memory outside": "return lib.shmget({shm}, 1, 0) >= 0",
}  # fmt: skip

#: What works, by design. The page on confinement names each.
BY_DESIGN = {
    "undoes governance in its own process",  # code in the process of its governor: the box holds, the policy does not
    "starts 400 processes",  # without ``processes``, which the kernel does not hold for user 0
}
