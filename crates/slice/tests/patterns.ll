; ModuleID = 'patterns.c'
source_filename = "patterns.c"
target datalayout = "e-m:e-p270:32:32-p271:32:32-p272:64:64-i64:64-f80:128-n8:16:32:64-S128"
target triple = "x86_64-pc-linux-gnu"

%struct.array = type { i64, i32, i32 }
%struct.item = type { i32, i32, i64 }
%struct.list = type { %struct.list* }
%struct.parameter = type { i64, i64 }

; Function Attrs: noinline nounwind uwtable
define dso_local i32 @plain(i8* noundef %dev, i8* noundef %data, i8* noundef %file) #0 {
entry:
  %dev.addr = alloca i8*, align 8
  %data.addr = alloca i8*, align 8
  %file.addr = alloca i8*, align 8
  store i8* %dev, i8** %dev.addr, align 8
  store i8* %data, i8** %data.addr, align 8
  store i8* %file, i8** %file.addr, align 8
  %0 = load i8*, i8** %data.addr, align 8
  %1 = bitcast i8* %0 to %struct.array*
  %count = getelementptr inbounds %struct.array, %struct.array* %1, i32 0, i32 1
  %2 = load i32, i32* %count, align 8
  ret i32 %2
}

; Function Attrs: noinline nounwind uwtable
define dso_local i32 @counted(i8* noundef %dev, i8* noundef %data, i8* noundef %file) #0 {
entry:
  %dev.addr = alloca i8*, align 8
  %data.addr = alloca i8*, align 8
  %file.addr = alloca i8*, align 8
  %a = alloca %struct.array*, align 8
  %copy = alloca i64*, align 8
  store i8* %dev, i8** %dev.addr, align 8
  store i8* %data, i8** %data.addr, align 8
  store i8* %file, i8** %file.addr, align 8
  %0 = load i8*, i8** %data.addr, align 8
  %1 = bitcast i8* %0 to %struct.array*
  store %struct.array* %1, %struct.array** %a, align 8
  %2 = load %struct.array*, %struct.array** %a, align 8
  %pointer = getelementptr inbounds %struct.array, %struct.array* %2, i32 0, i32 0
  %3 = load i64, i64* %pointer, align 8
  %4 = inttoptr i64 %3 to i8*
  %5 = load %struct.array*, %struct.array** %a, align 8
  %count = getelementptr inbounds %struct.array, %struct.array* %5, i32 0, i32 1
  %6 = load i32, i32* %count, align 8
  %conv = zext i32 %6 to i64
  %mul = mul i64 %conv, 8
  %call = call i8* @memdup_user(i8* noundef %4, i64 noundef %mul)
  %7 = bitcast i8* %call to i64*
  store i64* %7, i64** %copy, align 8
  %8 = load i64*, i64** %copy, align 8
  %tobool = icmp ne i64* %8, null
  %9 = zext i1 %tobool to i64
  %cond = select i1 %tobool, i32 0, i32 -12
  ret i32 %cond
}

declare i8* @memdup_user(i8* noundef, i64 noundef) #1

; Function Attrs: noinline nounwind uwtable
define dso_local i32 @nested(i8* noundef %dev, i8* noundef %data, i8* noundef %file) #0 {
entry:
  %retval = alloca i32, align 4
  %dev.addr = alloca i8*, align 8
  %data.addr = alloca i8*, align 8
  %file.addr = alloca i8*, align 8
  %a = alloca %struct.array*, align 8
  %items = alloca %struct.item*, align 8
  %i = alloca i32, align 4
  store i8* %dev, i8** %dev.addr, align 8
  store i8* %data, i8** %data.addr, align 8
  store i8* %file, i8** %file.addr, align 8
  %0 = load i8*, i8** %data.addr, align 8
  %1 = bitcast i8* %0 to %struct.array*
  store %struct.array* %1, %struct.array** %a, align 8
  %2 = load %struct.array*, %struct.array** %a, align 8
  %pointer = getelementptr inbounds %struct.array, %struct.array* %2, i32 0, i32 0
  %3 = load i64, i64* %pointer, align 8
  %4 = inttoptr i64 %3 to i8*
  %5 = bitcast i8* %4 to %struct.item*
  store %struct.item* %5, %struct.item** %items, align 8
  store i32 0, i32* %i, align 4
  br label %for.cond

for.cond:                                         ; preds = %for.inc, %entry
  %6 = load i32, i32* %i, align 4
  %7 = load %struct.array*, %struct.array** %a, align 8
  %count = getelementptr inbounds %struct.array, %struct.array* %7, i32 0, i32 1
  %8 = load i32, i32* %count, align 8
  %cmp = icmp ult i32 %6, %8
  br i1 %cmp, label %for.body, label %for.end

for.body:                                         ; preds = %for.cond
  %9 = load %struct.item*, %struct.item** %items, align 8
  %10 = load i32, i32* %i, align 4
  %idxprom = zext i32 %10 to i64
  %arrayidx = getelementptr inbounds %struct.item, %struct.item* %9, i64 %idxprom
  %call = call i32 @read_item(%struct.item* noundef %arrayidx)
  %tobool = icmp ne i32 %call, 0
  br i1 %tobool, label %if.then, label %if.end

if.then:                                          ; preds = %for.body
  store i32 -14, i32* %retval, align 4
  br label %return

if.end:                                           ; preds = %for.body
  br label %for.inc

for.inc:                                          ; preds = %if.end
  %11 = load i32, i32* %i, align 4
  %inc = add i32 %11, 1
  store i32 %inc, i32* %i, align 4
  br label %for.cond, !llvm.loop !6

for.end:                                          ; preds = %for.cond
  store i32 0, i32* %retval, align 4
  br label %return

return:                                           ; preds = %for.end, %if.then
  %12 = load i32, i32* %retval, align 4
  ret i32 %12
}

; Function Attrs: noinline nounwind uwtable
define internal i32 @read_item(%struct.item* noundef %from) #0 {
entry:
  %retval = alloca i32, align 4
  %from.addr = alloca %struct.item*, align 8
  %item = alloca %struct.item, align 8
  store %struct.item* %from, %struct.item** %from.addr, align 8
  %0 = bitcast %struct.item* %item to i8*
  %1 = load %struct.item*, %struct.item** %from.addr, align 8
  %2 = bitcast %struct.item* %1 to i8*
  %call = call i64 @sluice_from_user(i8* noundef %0, i8* noundef %2, i64 noundef 16)
  %tobool = icmp ne i64 %call, 0
  br i1 %tobool, label %if.then, label %if.end

if.then:                                          ; preds = %entry
  store i32 -14, i32* %retval, align 4
  br label %return

if.end:                                           ; preds = %entry
  %data = getelementptr inbounds %struct.item, %struct.item* %item, i32 0, i32 2
  %3 = load i64, i64* %data, align 8
  %4 = inttoptr i64 %3 to i8*
  %words = getelementptr inbounds %struct.item, %struct.item* %item, i32 0, i32 1
  %5 = load i32, i32* %words, align 4
  %conv = zext i32 %5 to i64
  %mul = mul i64 %conv, 4
  %call1 = call i8* @memdup_user(i8* noundef %4, i64 noundef %mul)
  store i32 0, i32* %retval, align 4
  br label %return

return:                                           ; preds = %if.end, %if.then
  %6 = load i32, i32* %retval, align 4
  ret i32 %6
}

; Function Attrs: noinline nounwind uwtable
define dso_local i32 @put(i8* noundef %dev, i8* noundef %data, i8* noundef %file) #0 {
entry:
  %retval = alloca i32, align 4
  %dev.addr = alloca i8*, align 8
  %data.addr = alloca i8*, align 8
  %file.addr = alloca i8*, align 8
  %a = alloca %struct.array*, align 8
  %count = alloca i32, align 4
  %value = alloca i32, align 4
  %i = alloca i32, align 4
  store i8* %dev, i8** %dev.addr, align 8
  store i8* %data, i8** %data.addr, align 8
  store i8* %file, i8** %file.addr, align 8
  %0 = load i8*, i8** %data.addr, align 8
  %1 = bitcast i8* %0 to %struct.array*
  store %struct.array* %1, %struct.array** %a, align 8
  store i32 0, i32* %count, align 4
  store i32 7, i32* %value, align 4
  store i32 0, i32* %i, align 4
  br label %for.cond

for.cond:                                         ; preds = %for.inc, %entry
  %2 = load i32, i32* %i, align 4
  %cmp = icmp ult i32 %2, 100
  br i1 %cmp, label %for.body, label %for.end

for.body:                                         ; preds = %for.cond
  %3 = load i32, i32* %i, align 4
  %and = and i32 %3, 3
  %tobool = icmp ne i32 %and, 0
  br i1 %tobool, label %if.then, label %if.end5

if.then:                                          ; preds = %for.body
  %4 = load i32, i32* %count, align 4
  %5 = load %struct.array*, %struct.array** %a, align 8
  %count1 = getelementptr inbounds %struct.array, %struct.array* %5, i32 0, i32 1
  %6 = load i32, i32* %count1, align 8
  %cmp2 = icmp ult i32 %4, %6
  br i1 %cmp2, label %land.lhs.true, label %if.end

land.lhs.true:                                    ; preds = %if.then
  %7 = load %struct.array*, %struct.array** %a, align 8
  %pointer = getelementptr inbounds %struct.array, %struct.array* %7, i32 0, i32 0
  %8 = load i64, i64* %pointer, align 8
  %9 = inttoptr i64 %8 to i32*
  %10 = load i32, i32* %count, align 4
  %idx.ext = zext i32 %10 to i64
  %add.ptr = getelementptr inbounds i32, i32* %9, i64 %idx.ext
  %11 = bitcast i32* %add.ptr to i8*
  %12 = bitcast i32* %value to i8*
  %call = call i64 @sluice_to_user(i8* noundef %11, i8* noundef %12, i64 noundef 4)
  %tobool3 = icmp ne i64 %call, 0
  br i1 %tobool3, label %if.then4, label %if.end

if.then4:                                         ; preds = %land.lhs.true
  store i32 -14, i32* %retval, align 4
  br label %return

if.end:                                           ; preds = %land.lhs.true, %if.then
  %13 = load i32, i32* %count, align 4
  %inc = add i32 %13, 1
  store i32 %inc, i32* %count, align 4
  br label %if.end5

if.end5:                                          ; preds = %if.end, %for.body
  br label %for.inc

for.inc:                                          ; preds = %if.end5
  %14 = load i32, i32* %i, align 4
  %inc6 = add i32 %14, 1
  store i32 %inc6, i32* %i, align 4
  br label %for.cond, !llvm.loop !8

for.end:                                          ; preds = %for.cond
  store i32 0, i32* %retval, align 4
  br label %return

return:                                           ; preds = %for.end, %if.then4
  %15 = load i32, i32* %retval, align 4
  ret i32 %15
}

declare i64 @sluice_to_user(i8* noundef, i8* noundef, i64 noundef) #1

; Function Attrs: noinline nounwind uwtable
define dso_local i32 @by_kind(i8* noundef %dev, i8* noundef %data, i8* noundef %file) #0 {
entry:
  %dev.addr = alloca i8*, align 8
  %data.addr = alloca i8*, align 8
  %file.addr = alloca i8*, align 8
  %a = alloca %struct.array*, align 8
  store i8* %dev, i8** %dev.addr, align 8
  store i8* %data, i8** %data.addr, align 8
  store i8* %file, i8** %file.addr, align 8
  %0 = load i8*, i8** %data.addr, align 8
  %1 = bitcast i8* %0 to %struct.array*
  store %struct.array* %1, %struct.array** %a, align 8
  %2 = load %struct.array*, %struct.array** %a, align 8
  %kind = getelementptr inbounds %struct.array, %struct.array* %2, i32 0, i32 2
  %3 = load i32, i32* %kind, align 4
  %cmp = icmp eq i32 %3, 9
  br i1 %cmp, label %land.lhs.true, label %lor.lhs.false

lor.lhs.false:                                    ; preds = %entry
  %4 = load %struct.array*, %struct.array** %a, align 8
  %kind1 = getelementptr inbounds %struct.array, %struct.array* %4, i32 0, i32 2
  %5 = load i32, i32* %kind1, align 4
  %cmp2 = icmp eq i32 %5, 10
  br i1 %cmp2, label %land.lhs.true, label %if.end

land.lhs.true:                                    ; preds = %lor.lhs.false, %entry
  %6 = load %struct.array*, %struct.array** %a, align 8
  %count = getelementptr inbounds %struct.array, %struct.array* %6, i32 0, i32 1
  %7 = load i32, i32* %count, align 8
  %tobool = icmp ne i32 %7, 0
  br i1 %tobool, label %if.then, label %if.end

if.then:                                          ; preds = %land.lhs.true
  %8 = load %struct.array*, %struct.array** %a, align 8
  %pointer = getelementptr inbounds %struct.array, %struct.array* %8, i32 0, i32 0
  %9 = load i64, i64* %pointer, align 8
  %10 = inttoptr i64 %9 to i8*
  %11 = load %struct.array*, %struct.array** %a, align 8
  %count3 = getelementptr inbounds %struct.array, %struct.array* %11, i32 0, i32 1
  %12 = load i32, i32* %count3, align 8
  %conv = zext i32 %12 to i64
  %mul = mul i64 %conv, 64
  %call = call i8* @memdup_user(i8* noundef %10, i64 noundef %mul)
  br label %if.end

if.end:                                           ; preds = %if.then, %land.lhs.true, %lor.lhs.false
  ret i32 0
}

; Function Attrs: noinline nounwind uwtable
define dso_local i32 @chain(i8* noundef %dev, i8* noundef %data, i8* noundef %file) #0 {
entry:
  %retval = alloca i32, align 4
  %dev.addr = alloca i8*, align 8
  %data.addr = alloca i8*, align 8
  %file.addr = alloca i8*, align 8
  %next = alloca i64, align 8
  %link = alloca [2 x i64], align 16
  store i8* %dev, i8** %dev.addr, align 8
  store i8* %data, i8** %data.addr, align 8
  store i8* %file, i8** %file.addr, align 8
  %0 = load i8*, i8** %data.addr, align 8
  %1 = bitcast i8* %0 to %struct.array*
  %pointer = getelementptr inbounds %struct.array, %struct.array* %1, i32 0, i32 0
  %2 = load i64, i64* %pointer, align 8
  store i64 %2, i64* %next, align 8
  br label %while.cond

while.cond:                                       ; preds = %if.end, %entry
  %3 = load i64, i64* %next, align 8
  %tobool = icmp ne i64 %3, 0
  br i1 %tobool, label %while.body, label %while.end

while.body:                                       ; preds = %while.cond
  %arraydecay = getelementptr inbounds [2 x i64], [2 x i64]* %link, i64 0, i64 0
  %4 = bitcast i64* %arraydecay to i8*
  %5 = load i64, i64* %next, align 8
  %6 = inttoptr i64 %5 to i8*
  %call = call i64 @sluice_from_user(i8* noundef %4, i8* noundef %6, i64 noundef 16)
  %tobool1 = icmp ne i64 %call, 0
  br i1 %tobool1, label %if.then, label %if.end

if.then:                                          ; preds = %while.body
  store i32 -14, i32* %retval, align 4
  br label %return

if.end:                                           ; preds = %while.body
  %arrayidx = getelementptr inbounds [2 x i64], [2 x i64]* %link, i64 0, i64 0
  %7 = load i64, i64* %arrayidx, align 16
  store i64 %7, i64* %next, align 8
  br label %while.cond, !llvm.loop !9

while.end:                                        ; preds = %while.cond
  store i32 0, i32* %retval, align 4
  br label %return

return:                                           ; preds = %while.end, %if.then
  %8 = load i32, i32* %retval, align 4
  ret i32 %8
}

declare i64 @sluice_from_user(i8* noundef, i8* noundef, i64 noundef) #1

; Function Attrs: noinline nounwind uwtable
define dso_local i32 @unknown_length(i8* noundef %dev, i8* noundef %data, i8* noundef %file) #0 {
entry:
  %dev.addr = alloca i8*, align 8
  %data.addr = alloca i8*, align 8
  %file.addr = alloca i8*, align 8
  store i8* %dev, i8** %dev.addr, align 8
  store i8* %data, i8** %data.addr, align 8
  store i8* %file, i8** %file.addr, align 8
  %0 = load i8*, i8** %data.addr, align 8
  %1 = bitcast i8* %0 to %struct.array*
  %pointer = getelementptr inbounds %struct.array, %struct.array* %1, i32 0, i32 0
  %2 = load i64, i64* %pointer, align 8
  %3 = inttoptr i64 %2 to i8*
  %call = call i64 @length_of_device()
  %call1 = call i8* @memdup_user(i8* noundef %3, i64 noundef %call)
  ret i32 0
}

declare i64 @length_of_device() #1

; Function Attrs: noinline nounwind uwtable
define dso_local i32 @escapes(i8* noundef %dev, i8* noundef %data, i8* noundef %file) #0 {
entry:
  %dev.addr = alloca i8*, align 8
  %data.addr = alloca i8*, align 8
  %file.addr = alloca i8*, align 8
  store i8* %dev, i8** %dev.addr, align 8
  store i8* %data, i8** %data.addr, align 8
  store i8* %file, i8** %file.addr, align 8
  %0 = load i8*, i8** %data.addr, align 8
  %1 = bitcast i8* %0 to %struct.array*
  %pointer = getelementptr inbounds %struct.array, %struct.array* %1, i32 0, i32 0
  %2 = load i64, i64* %pointer, align 8
  %3 = inttoptr i64 %2 to i8*
  call void @outside(i8* noundef %3)
  ret i32 0
}

declare void @outside(i8* noundef) #1

; Function Attrs: noinline nounwind uwtable
define dso_local i64 @switched(i8* noundef %file, i32 noundef %cmd, i64 noundef %arg) #0 {
entry:
  %retval = alloca i64, align 8
  %file.addr = alloca i8*, align 8
  %cmd.addr = alloca i32, align 4
  %arg.addr = alloca i64, align 8
  %value = alloca i32, align 4
  %a = alloca %struct.array, align 8
  store i8* %file, i8** %file.addr, align 8
  store i32 %cmd, i32* %cmd.addr, align 4
  store i64 %arg, i64* %arg.addr, align 8
  store i32 0, i32* %value, align 4
  %0 = load i32, i32* %cmd.addr, align 4
  switch i32 %0, label %sw.epilog [
    i32 -2147203839, label %sw.bb
    i32 1074283778, label %sw.bb1
  ]

sw.bb:                                            ; preds = %entry
  %1 = load i64, i64* %arg.addr, align 8
  %2 = inttoptr i64 %1 to i8*
  %3 = bitcast i32* %value to i8*
  %call = call i64 @sluice_to_user(i8* noundef %2, i8* noundef %3, i64 noundef 4)
  store i64 %call, i64* %retval, align 8
  br label %return

sw.bb1:                                           ; preds = %entry
  %4 = bitcast %struct.array* %a to i8*
  %5 = load i64, i64* %arg.addr, align 8
  %6 = inttoptr i64 %5 to i8*
  %call2 = call i64 @sluice_from_user(i8* noundef %4, i8* noundef %6, i64 noundef 8)
  store i64 %call2, i64* %retval, align 8
  br label %return

sw.epilog:                                        ; preds = %entry
  store i64 -25, i64* %retval, align 8
  br label %return

return:                                           ; preds = %sw.epilog, %sw.bb1, %sw.bb
  %7 = load i64, i64* %retval, align 8
  ret i64 %7
}

; Function Attrs: noinline nounwind uwtable
define dso_local i32 @unreached(i8* noundef %dev, i8* noundef %data, i8* noundef %file) #0 {
entry:
  %retval = alloca i32, align 4
  %dev.addr = alloca i8*, align 8
  %data.addr = alloca i8*, align 8
  %file.addr = alloca i8*, align 8
  %head = alloca %struct.list, align 8
  %each = alloca %struct.list*, align 8
  %last = alloca %struct.list*, align 8
  store i8* %dev, i8** %dev.addr, align 8
  store i8* %data, i8** %data.addr, align 8
  store i8* %file, i8** %file.addr, align 8
  %next = getelementptr inbounds %struct.list, %struct.list* %head, i32 0, i32 0
  store %struct.list* %head, %struct.list** %next, align 8
  store %struct.list* null, %struct.list** %last, align 8
  %next1 = getelementptr inbounds %struct.list, %struct.list* %head, i32 0, i32 0
  %0 = load %struct.list*, %struct.list** %next1, align 8
  store %struct.list* %0, %struct.list** %each, align 8
  br label %for.cond

for.cond:                                         ; preds = %for.inc, %entry
  %1 = load %struct.list*, %struct.list** %each, align 8
  %cmp = icmp ne %struct.list* %1, %head
  br i1 %cmp, label %for.body, label %for.end

for.body:                                         ; preds = %for.cond
  %2 = load %struct.list*, %struct.list** %each, align 8
  store %struct.list* %2, %struct.list** %last, align 8
  br label %for.inc

for.inc:                                          ; preds = %for.body
  %3 = load %struct.list*, %struct.list** %each, align 8
  %next2 = getelementptr inbounds %struct.list, %struct.list* %3, i32 0, i32 0
  %4 = load %struct.list*, %struct.list** %next2, align 8
  store %struct.list* %4, %struct.list** %each, align 8
  br label %for.cond, !llvm.loop !10

for.end:                                          ; preds = %for.cond
  %5 = load %struct.list*, %struct.list** %last, align 8
  %tobool = icmp ne %struct.list* %5, null
  br i1 %tobool, label %if.end, label %if.then

if.then:                                          ; preds = %for.end
  store i32 -2, i32* %retval, align 4
  br label %return

if.end:                                           ; preds = %for.end
  %6 = load i8*, i8** %data.addr, align 8
  %7 = bitcast i8* %6 to %struct.array*
  %pointer = getelementptr inbounds %struct.array, %struct.array* %7, i32 0, i32 0
  %8 = load i64, i64* %pointer, align 8
  %9 = inttoptr i64 %8 to i8*
  %call = call i8* @memdup_user(i8* noundef %9, i64 noundef 16)
  store i32 0, i32* %retval, align 4
  br label %return

return:                                           ; preds = %if.end, %if.then
  %10 = load i32, i32* %retval, align 4
  ret i32 %10
}

; Function Attrs: noinline nounwind uwtable
define dso_local i32 @by_kind_of_element(i8* noundef %dev, i8* noundef %data, i8* noundef %file) #0 {
entry:
  %retval = alloca i32, align 4
  %dev.addr = alloca i8*, align 8
  %data.addr = alloca i8*, align 8
  %file.addr = alloca i8*, align 8
  %a = alloca %struct.array*, align 8
  %copy = alloca %struct.parameter*, align 8
  %i = alloca i32, align 4
  store i8* %dev, i8** %dev.addr, align 8
  store i8* %data, i8** %data.addr, align 8
  store i8* %file, i8** %file.addr, align 8
  %0 = load i8*, i8** %data.addr, align 8
  %1 = bitcast i8* %0 to %struct.array*
  store %struct.array* %1, %struct.array** %a, align 8
  %2 = load %struct.array*, %struct.array** %a, align 8
  %pointer = getelementptr inbounds %struct.array, %struct.array* %2, i32 0, i32 0
  %3 = load i64, i64* %pointer, align 8
  %4 = inttoptr i64 %3 to i8*
  %5 = load %struct.array*, %struct.array** %a, align 8
  %count = getelementptr inbounds %struct.array, %struct.array* %5, i32 0, i32 1
  %6 = load i32, i32* %count, align 8
  %conv = zext i32 %6 to i64
  %mul = mul i64 %conv, 16
  %call = call i8* @memdup_user(i8* noundef %4, i64 noundef %mul)
  %7 = bitcast i8* %call to %struct.parameter*
  store %struct.parameter* %7, %struct.parameter** %copy, align 8
  store i32 0, i32* %i, align 4
  br label %for.cond

for.cond:                                         ; preds = %for.inc, %entry
  %8 = load i32, i32* %i, align 4
  %9 = load %struct.array*, %struct.array** %a, align 8
  %count1 = getelementptr inbounds %struct.array, %struct.array* %9, i32 0, i32 1
  %10 = load i32, i32* %count1, align 8
  %cmp = icmp ult i32 %8, %10
  br i1 %cmp, label %for.body, label %for.end

for.body:                                         ; preds = %for.cond
  %11 = load %struct.parameter*, %struct.parameter** %copy, align 8
  %12 = load i32, i32* %i, align 4
  %idxprom = zext i32 %12 to i64
  %arrayidx = getelementptr inbounds %struct.parameter, %struct.parameter* %11, i64 %idxprom
  %kind = getelementptr inbounds %struct.parameter, %struct.parameter* %arrayidx, i32 0, i32 0
  %13 = load i64, i64* %kind, align 8
  switch i64 %13, label %sw.default [
    i64 1, label %sw.bb
    i64 4, label %sw.bb7
  ]

sw.bb:                                            ; preds = %for.body
  %14 = load %struct.parameter*, %struct.parameter** %copy, align 8
  %15 = load i32, i32* %i, align 4
  %idxprom3 = zext i32 %15 to i64
  %arrayidx4 = getelementptr inbounds %struct.parameter, %struct.parameter* %14, i64 %idxprom3
  %value = getelementptr inbounds %struct.parameter, %struct.parameter* %arrayidx4, i32 0, i32 1
  %16 = load i64, i64* %value, align 8
  %conv5 = trunc i64 %16 to i32
  %17 = load %struct.array*, %struct.array** %a, align 8
  %kind6 = getelementptr inbounds %struct.array, %struct.array* %17, i32 0, i32 2
  store i32 %conv5, i32* %kind6, align 4
  br label %sw.epilog

sw.bb7:                                           ; preds = %for.body
  %18 = load %struct.parameter*, %struct.parameter** %copy, align 8
  %19 = load i32, i32* %i, align 4
  %idxprom8 = zext i32 %19 to i64
  %arrayidx9 = getelementptr inbounds %struct.parameter, %struct.parameter* %18, i64 %idxprom8
  %value10 = getelementptr inbounds %struct.parameter, %struct.parameter* %arrayidx9, i32 0, i32 1
  %20 = load i64, i64* %value10, align 8
  %21 = inttoptr i64 %20 to i8*
  %call11 = call i8* @memdup_user(i8* noundef %21, i64 noundef 64)
  br label %sw.epilog

sw.default:                                       ; preds = %for.body
  store i32 -22, i32* %retval, align 4
  br label %return

sw.epilog:                                        ; preds = %sw.bb7, %sw.bb
  br label %for.inc

for.inc:                                          ; preds = %sw.epilog
  %22 = load i32, i32* %i, align 4
  %inc = add i32 %22, 1
  store i32 %inc, i32* %i, align 4
  br label %for.cond, !llvm.loop !11

for.end:                                          ; preds = %for.cond
  store i32 0, i32* %retval, align 4
  br label %return

return:                                           ; preds = %for.end, %sw.default
  %23 = load i32, i32* %retval, align 4
  ret i32 %23
}

attributes #0 = { noinline nounwind uwtable "frame-pointer"="all" "min-legal-vector-width"="0" "no-trapping-math"="true" "stack-protector-buffer-size"="8" "target-cpu"="x86-64" "target-features"="+cx8,+fxsr,+mmx,+sse,+sse2,+x87" "tune-cpu"="generic" }
attributes #1 = { "frame-pointer"="all" "no-trapping-math"="true" "stack-protector-buffer-size"="8" "target-cpu"="x86-64" "target-features"="+cx8,+fxsr,+mmx,+sse,+sse2,+x87" "tune-cpu"="generic" }

!llvm.module.flags = !{!0, !1, !2, !3, !4}
!llvm.ident = !{!5}

!0 = !{i32 1, !"wchar_size", i32 4}
!1 = !{i32 7, !"PIC Level", i32 2}
!2 = !{i32 7, !"PIE Level", i32 2}
!3 = !{i32 7, !"uwtable", i32 1}
!4 = !{i32 7, !"frame-pointer", i32 2}
!5 = !{!"Debian clang version 14.0.6"}
!6 = distinct !{!6, !7}
!7 = !{!"llvm.loop.mustprogress"}
!8 = distinct !{!8, !7}
!9 = distinct !{!9, !7}
!10 = distinct !{!10, !7}
!11 = distinct !{!11, !7}
